"""A context under address and undefined-behaviour sanitizers: stops at any poll, snapshots, copies, files."""

from __future__ import annotations

from pathlib import Path

from tests.native import run
from tests.runtime.conftest import Case


def test_context_stopped_anywhere_goes_on_as_the_straight_run(
    exact: Case, sanitized: Path, tmp_path: Path
) -> None:
    assert run(sanitized / "run_context", exact.gguf, tmp_path / "sequence").strip() == "ok"
