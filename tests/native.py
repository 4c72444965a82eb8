"""The C test programs of tests/c, built with address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Freed memory is kept aside to find late uses; a small share of it, so that the peak is the library's own.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "quarantine_size_mb=4:detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build_sanitized() -> Path:
    """The folder of the programs in build/asan, which is made or brought up to date here."""
    build = ROOT / "build" / "asan"
    options = ["-DLLAMA_K3_BUILD_TESTS=ON", "-DLLAMA_K3_SANITIZE=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(build), *options, python],
        ["cmake", "--build", str(build), "-j2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    programs = build / "tests" / "c"
    assert b"__asan_init" in (programs / "load_file").read_bytes(), "load_file was built without sanitizers"
    return programs


def run(
    program: Path,
    *arguments: str | Path,
    cwd: Path | None = None,
    timeout: float = 300,
    environment: dict[str, str] | None = None,
) -> str:
    """Standard output of a test program; its failure and any sanitizer report fail the test.

    `environment`: variables beside those of this process.
    """
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env={**os.environ, **SANITIZER_OPTIONS, **(environment or {})},
        capture_output=True,
        timeout=timeout,
    )
    errors = done.stderr.decode(errors="replace")
    assert done.returncode == 0 and not errors, f"{program.name}: exit {done.returncode}\n{errors[-4000:]}"
    return done.stdout.decode(errors="replace")
