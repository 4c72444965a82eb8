"""The broken model files of tests/bad_files.py through Python: each its own exception, at once and small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bad_files import write_folder

MAX_MS, MAX_KIB = 1000.0, 100 * 1000

# A line for each file: status of the exception, milliseconds, growth of the peak in KiB. In a process of its
# own, so that the peak is that of loading.
LOADER = """
import sys, time
from llama_k3 import Model, ModelFileError

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

for path in sys.argv[1:]:
    open("/proc/self/clear_refs", "w").write("5")
    before, start = peak(), time.perf_counter()
    try:
        with Model(path, n_threads=1):
            status, message = 0, ""
    except ModelFileError as error:
        status, message = error.status, str(error)
    print(status, (time.perf_counter() - start) * 1e3, peak() - before, message, sep="\\t")
"""


def test_each_file_raises_its_exception(tmp_path: Path) -> None:
    from llama_k3._lib import ffi, lib

    cases = write_folder(tmp_path)
    command = [sys.executable, "-c", LOADER, *(case.load for case in cases)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr
    wrong = []
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        status, ms, kib, message = line.split("\t", 3)
        name = ffi.string(lib.llama_k3_status_name(int(status))).decode()
        if name != case.status or case.mention not in message:
            wrong.append(f"{case.load}: {name} {message!r}, wanted {case.status} with {case.mention!r}")
        if float(ms) > MAX_MS or int(kib) > MAX_KIB:
            wrong.append(f"{case.load}: {ms} ms, {kib} KiB, wanted at most {MAX_MS} ms and {MAX_KIB} KiB")
    assert not wrong, "\n".join(wrong)
