"""The threads of the fast form: plans run again and again, with more threads than processors, and stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native import run


@pytest.mark.parametrize(("runs", "threads"), [(500, 1), (2000, 2), (300, 3), (40, 8)])
def test_runs_are_whole_or_stopped(sanitized: Path, runs: int, threads: int) -> None:
    stopped = int(run(sanitized / "run_pool", str(runs), str(threads), "1"))
    assert 0 < stopped < 0.5 * runs
