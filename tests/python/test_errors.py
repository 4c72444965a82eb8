"""errors.py: every status of the header has its own class, and one function picks it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from llama_k3._lib import ffi, lib

from llama_k3 import LlamaK3Error, ModelFileError, StateError, errors

PACKAGE = Path(__file__).parents[2] / "python" / "llama_k3"
# The extension's declarations are the header's.
FAILURES: dict[str, int] = {
    name: number for name, number in ffi.typeof("enum llama_k3_status").relements.items() if number
}


def test_the_header_was_read() -> None:
    assert lib.LLAMA_K3_OK == 0
    assert len(FAILURES) >= 36


def test_one_class_for_each_status() -> None:
    assert sorted(errors.BY_STATUS) == sorted(FAILURES.values())
    assert len(set(errors.BY_STATUS.values())) == len(FAILURES)


@pytest.mark.parametrize("name", FAILURES)
def test_check_raises_the_class_of_the_status(name: str) -> None:
    status = FAILURES[name]
    assert ffi.string(lib.llama_k3_status_name(status)).decode() == name
    with pytest.raises(LlamaK3Error, match="what went wrong") as raised:
        errors.check(status, "what went wrong")
    assert raised.value.status == status
    assert type(raised.value) is errors.BY_STATUS[status]
    part = name.split("_")[2]
    assert isinstance(raised.value, ModelFileError) == (part in ("FILE", "SPLIT", "MODEL"))
    assert isinstance(raised.value, StateError) == (part == "STATE")


def test_success_and_an_unknown_status() -> None:
    errors.check(0, "nothing")
    with pytest.raises(LlamaK3Error, match="status 1234"):
        errors.check(1234, "from a newer library")


def test_arguments_and_memory_are_also_the_usual_exceptions() -> None:
    assert issubclass(errors.ArgumentError, ValueError)
    assert issubclass(errors.OutOfMemoryError, MemoryError)


def test_only_one_module_imports_the_extension() -> None:
    importers = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\b_ffi import|import _ffi", path.read_text())
    ]
    assert importers == ["_lib.py"]
