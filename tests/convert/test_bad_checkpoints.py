"""Every broken checkpoint gets its named error in one line, fast, in little memory, and leaves no output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from convert import errors
from convert.cli import EXIT_REFUSED, main
from tests.convert.bad_checkpoints import MAX_FILE_BYTES, Case, base, cases, write_case

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 1.0
PEAK_BYTES = 100 << 20
# Errors that do not come from the checkpoint, and bases that only group others.
NOT_FROM_CHECKPOINTS = (errors.OutputError, errors.VerifyError)
GROUPS = (errors.ConvertError, errors.TensorError)

# Converts each folder that it is given; prints seconds and peak memory of all together.
RUNNER = """
import json, sys, time
from convert.cli import main
seconds = {}
for folder in json.load(sys.stdin):
    start = time.process_time()
    main([folder, "--outfile", folder + ".gguf"])
    seconds[folder] = time.process_time() - start
# ru_maxrss would count what the process was before it became this program: the test runner
peak = 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "peak": peak}), file=sys.__stderr__)
"""


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_named_error(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_case(case, tmp_path / "checkpoint")
    assert all(path.stat().st_size < MAX_FILE_BYTES for path in folder.iterdir())
    assert main([str(folder), "--outfile", str(tmp_path / "out.gguf")]) == EXIT_REFUSED
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and lines[0].startswith(f"error: {case.error.label}: "), lines
    assert lines[0].isprintable() and len(lines[0]) < 600
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"], "something was left behind"


def test_base_is_valid(tmp_path: Path) -> None:
    folder = base().write(tmp_path / "checkpoint")
    assert main([str(folder), "--outfile", str(tmp_path / "out.gguf"), "--verify"]) == 0


def test_every_error_has_a_case() -> None:
    """One bad checkpoint at least for each class that a checkpoint can cause."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    wanted = {
        kind
        for kind in classes
        if issubclass(kind, errors.ConvertError)
        and not issubclass(kind, NOT_FROM_CHECKPOINTS)
        and kind not in GROUPS
    }
    assert wanted - {case.error for case in cases()} == set()


def test_labels_are_distinct() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    labels = [kind.label for kind in classes if issubclass(kind, errors.ConvertError)]
    assert len(set(labels)) == len(labels)


def test_time_and_memory(tmp_path: Path) -> None:
    folders = [str(write_case(case, tmp_path / case.name)) for case in cases()]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(folders),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stderr.splitlines()[-1])
    slow = {folder: spent for folder, spent in result["seconds"].items() if spent > SECONDS}
    assert slow == {}
    assert result["peak"] < PEAK_BYTES
