"""The note beside an unfinished output that lets a stopped run go on.

It holds the plan's digest and how much of the output is on the disk. Files are written one after the other
and from front to back, so that one file number and one byte count say it all.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from .plan import Plan

VERSION = 1


@dataclass(frozen=True)
class Position:
    """Everything before byte `nbytes` of output file number `file` is written."""

    file: int
    nbytes: int


START = Position(0, 0)


class Journal:
    """Reads and writes the note of one output."""

    def __init__(self, out: Path, digest: str) -> None:
        self.path = out.with_name(out.name + ".resume")
        self.digest = digest

    def load(self, plan: Plan) -> Position:
        """Where to go on; the start where there is no note, or one of another plan or other files."""
        try:
            values = json.loads(self.path.read_bytes())
            position = Position(int(values["file"]), int(values["nbytes"]))
            matches = values["version"] == VERSION and values["digest"] == self.digest
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return START
        if not matches or not 0 <= position.file < len(plan.files):
            return START
        for number, file in enumerate(plan.files[: position.file + 1]):
            wanted = file.nbytes if number < position.file else position.nbytes
            found = part_path(file.path)
            if wanted > file.nbytes or not found.is_file() or found.stat().st_size < wanted:
                return START
        return position

    def save(self, position: Position) -> None:
        """Replaces the note; the bytes before `position` must be on the disk already."""
        values = {"version": VERSION, "digest": self.digest, "file": position.file, "nbytes": position.nbytes}
        temporary = self.path.with_name(self.path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(values, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def part_path(path: Path) -> Path:
    """The temporary name of an output file."""
    return path.with_name(path.name + ".part")
