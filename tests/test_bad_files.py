"""Broken model files through the C library, in a build with address and undefined-behaviour sanitizers.

Each file of tests/bad_files.py gives its own status and a message that names the broken thing, within a
second and 100 MB; random damage to valid files never crashes. A report of a sanitizer, leaks included, fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from gguf import GGUFReader

from tests.bad_files import Case, write_folder
from tests.broken.tiny import k3_image
from tests.native import ROOT, run

MAX_MS, MAX_KIB = 1000.0, 100 * 1000
FUZZ_COUNT = 10_000


class Folder(NamedTuple):
    path: Path
    cases: list[Case]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("bad_files")
    return Folder(path, write_folder(path))


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for a file that is rewritten thousands of times: in memory where there is such a place."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_every_status_of_files_has_a_case(folder: Folder) -> None:
    header = (ROOT / "llama_k3" / "include" / "llama_k3.h").read_text()
    wanted = set(re.findall(r"\b(LLAMA_K3_(?:FILE|SPLIT|MODEL)_[A-Z_]+) += \d+", header))
    assert len(wanted) >= 25
    assert wanted - {case.status for case in folder.cases} == set()


def test_valid_file_is_gguf(folder: Folder) -> None:
    """The writer of these tests against the gguf package: same tensors and keys."""
    reader = GGUFReader(folder.path / "good_k3.gguf")
    image = k3_image()
    assert [t.name.encode() for t in reader.tensors] == [t.name for t in image.tensors]
    assert [int(t.tensor_type) for t in reader.tensors] == [t.tensor_type for t in image.tensors]
    assert [int(t.n_bytes) for t in reader.tensors] == [t.n_bytes() for t in image.tensors]
    names = [k.name.decode() for k in image.keys]
    assert [name for name in reader.fields if not name.startswith("GGUF.")] == names


def test_each_file_gives_its_status(folder: Folder, sanitized: Path) -> None:
    out = run(sanitized / "load_file", *(case.load for case in folder.cases), cwd=folder.path)
    lines = [line.split("\t") for line in out.splitlines()]
    assert len(lines) == len(folder.cases)
    wrong = []
    for case, (path, status, message, ms, kib) in zip(folder.cases, lines, strict=True):
        assert path == case.load
        if status != case.status or case.mention not in message or bool(message) != (status != "LLAMA_K3_OK"):
            wrong.append(f"{path}: {status} {message!r}, wanted {case.status} with {case.mention!r}")
        if float(ms) > MAX_MS or not 0 < int(kib) < MAX_KIB:
            wrong.append(f"{path}: {ms} ms, {kib} KiB, wanted at most {MAX_MS} ms and {MAX_KIB} KiB")
    assert not wrong, "\n".join(wrong)


def test_named_pipe_is_refused(tmp_path: Path, sanitized: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    assert "\tLLAMA_K3_FILE_OPEN\t" in run(sanitized / "load_file", pipe, timeout=20)


@pytest.mark.parametrize("name", ["good_k3", "good_linear"])
def test_random_damage_never_crashes(name: str, folder: Folder, scratch: Path, sanitized: Path) -> None:
    """Flipped bits, overwritten integers and cuts; most of them in the header."""
    file = folder.path / f"{name}.gguf"
    header = GGUFReader(file).data_offset
    out = run(
        sanitized / "load_file", "--fuzz", "1", str(FUZZ_COUNT), str(header), file, scratch / "fuzz.gguf"
    )
    met = {status: int(times) for status, times in (line.split("\t") for line in out.splitlines())}
    assert sum(met.values()) == FUZZ_COUNT
    assert met["LLAMA_K3_OK"] < FUZZ_COUNT / 2, "the damage hardly shows"
    assert len(met) >= 15, f"few kinds of failure: {met}"


def test_arguments_progress_references_digest(folder: Folder, tmp_path: Path, sanitized: Path) -> None:
    valid = folder.path / "good_k3.gguf"
    other_data = tmp_path / "other_data.gguf"
    raw = bytearray(valid.read_bytes())
    raw[-1] ^= 1
    other_data.write_bytes(raw)
    part = folder.path / "good_split_1" / "model-00002-of-00003.gguf"
    other_header = folder.path / "good_number_types.gguf"
    run(sanitized / "check_model", valid, part, other_data, other_header, cwd=tmp_path)


def test_hash_notices_every_change(sanitized: Path) -> None:
    assert "GB/s" in run(sanitized / "check_hash")


def test_files_can_be_written_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "bad_files.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "manifest.json").read_text())["good_k3.gguf"] == "LLAMA_K3_OK"
