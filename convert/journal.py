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
from typing import Any

from .plan import Plan

VERSION = 1


@dataclass(frozen=True)
class Position:
    """Everything before byte `nbytes` of output file number `file` is written.

    `file` is the number of files when all are, and at most their names are missing.
    """

    file: int
    nbytes: int


START = Position(0, 0)


class Journal:
    """Reads and writes the note of one output."""

    def __init__(self, out: Path, plan: Plan, digest: str) -> None:
        self.path = out.with_name(out.name + ".resume")
        self.digest = digest
        self.names = [part_path(file.path).name for file in plan.files]

    def load(self, plan: Plan) -> Position:
        """Where to go on; the start where there is no note, or one of another plan or other files."""
        values = self._read()
        if values is None or values["version"] != VERSION or values["digest"] != self.digest:
            return START
        position = Position(values["file"], values["nbytes"])
        if not 0 <= position.file <= len(plan.files):
            return START
        complete = position.file == len(plan.files)
        for number, file in enumerate(plan.files[: position.file + 1]):
            wanted = file.nbytes if number < position.file else position.nbytes
            found = part_path(file.path)
            if complete and not found.is_file():
                found = file.path
            if wanted > file.nbytes or not found.is_file() or found.stat().st_size < wanted:
                return START
        return position

    def stale_files(self) -> list[str]:
        """Unfinished files that a stopped run of another plan left and that this one does not use."""
        values = self._read()
        names = values["files"] if values is not None else []
        return [name for name in names if name not in self.names and (self.path.parent / name).is_file()]

    def _read(self) -> dict[str, Any] | None:
        """The note's fields, None where there is none or it is unreadable."""
        try:
            values = json.loads(self.path.read_bytes())
            kinds = {"version": int, "digest": str, "files": list, "file": int, "nbytes": int}
            if all(isinstance(values[name], kind) for name, kind in kinds.items()):
                return dict(values)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return None

    def save(self, position: Position) -> None:
        """Replaces the note; the bytes before `position` must be on the disk already."""
        values = {
            "version": VERSION,
            "digest": self.digest,
            "files": self.names,
            "file": position.file,
            "nbytes": position.nbytes,
        }
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
