"""The installed package: one wheel for all versions, one exported symbol, the commands, no build inputs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from llama_k3._lib import lib

import llama_k3

ROOT = Path(__file__).parents[2]
DISTRIBUTION = importlib.metadata.distribution("llama-k3")
PACKAGE = Path(llama_k3.__file__).parent


def test_every_function_of_the_header_is_there() -> None:
    header = (ROOT / "llama_k3" / "include" / "llama_k3.h").read_text()
    declared = set(re.findall(r"^LLAMA_K3_API\s.*?\b(llama_k3_\w+)\s*\(", header, re.MULTILINE | re.DOTALL))
    assert len(declared) > 30
    assert declared == {name for name in dir(lib) if name.startswith("llama_k3_")}


def test_only_the_module_is_exported() -> None:
    extension = next(PACKAGE.glob("_ffi.abi3.so"))
    done = subprocess.run(
        ["nm", "-D", "--defined-only", extension], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["PyInit__ffi"]


def test_one_wheel_for_all_versions() -> None:
    wheel = DISTRIBUTION.read_text("WHEEL")
    assert wheel and re.search(r"^Tag: cp310-abi3-", wheel, re.MULTILINE)


def test_no_build_inputs_are_installed() -> None:
    suffixes = {Path(file).suffix for file in DISTRIBUTION.files or []}
    assert not suffixes & {".c", ".h", ".cdef", ".cmake", ".a"}


def test_commands_and_converter_are_installed() -> None:
    commands = {entry.name: entry.value for entry in DISTRIBUTION.entry_points}
    assert commands == {
        "llama-cli": "llama_k3.cli.main:main",
        "llama-server": "llama_k3.cli.server:main",
        "llama-bench": "llama_k3.cli.bench:main",
        "convert-k3": "llama_k3_convert.cli:main",
    }
    for command in commands:
        done = subprocess.run(
            [Path(sys.executable).parent / command, "--help"], capture_output=True, text=True, check=True
        )
        assert command in done.stdout


def test_versions_agree() -> None:
    assert DISTRIBUTION.version == llama_k3.__version__
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert f"project(llama_k3 VERSION {llama_k3.__version__} " in cmake
