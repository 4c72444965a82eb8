"""Writes a plan: streams every tensor into files of a temporary name and renames them when all is complete.

Memory stays the same for any size of model: a unit is read, repacked into a buffer of the sink and written
while the next one is made. How far the output is on the disk stands in the journal; a stopped run goes on
from there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from .checkpoint import Checkpoint
from .errors import BusyError, DiskSpaceError, OutputError, TensorError
from .header import ALIGNMENT, align
from .journal import Journal, Position, part_path
from .mxfp4 import Repacker
from .plan import Plan, PlannedFile, plan_digest
from .sink import Sink
from .stream import TensorStream, open_stream

Progress = Callable[[int], None]


class Output:
    """The output files of one plan on the disk: space, resuming, writing, renaming."""

    def __init__(self, plan: Plan, out: Path, checkpoint: Checkpoint) -> None:
        """`out` is the path that the user gave; split files lie beside it."""
        if not out.parent.is_dir():
            raise OutputError(f"{out.parent}", found="no such folder")
        for path in (out, *(file.path for file in plan.files)):
            if path.is_dir():
                raise OutputError(f"{path}", found="a folder", wanted="a file name")
        self.plan = plan
        self.checkpoint = checkpoint
        self.folder = out.parent
        self.journal = Journal(out, plan, plan_digest(plan, checkpoint))
        self.position = self.journal.load(plan)
        self.stale_files = self.journal.stale_files()

    @property
    def done_bytes(self) -> int:
        """Bytes of the output that a stopped run left behind and that are kept."""
        done = sum(file.nbytes for file in self.plan.files[: self.position.file])
        return done + self.position.nbytes

    @property
    def needed_bytes(self) -> int:
        return self.plan.nbytes - self.done_bytes

    def check_space(self) -> int:
        """Returns the free bytes; raises DiskSpaceError where they do not suffice."""
        free = shutil.disk_usage(self.folder).free + self._reclaimed_bytes()
        if free < self.needed_bytes:
            raise DiskSpaceError(f"{self.folder}", found=f"{free} bytes free", wanted=f"{self.needed_bytes}")
        return free

    def write(self, progress: Progress) -> None:
        """Writes what is missing and renames the files. `progress` gets the number of bytes of each step.

        What is written so far stays for a later run, except where a tensor turns out to be wrong.
        """
        with self._locked():
            position = self.position
            try:
                for number in range(position.file, len(self.plan.files)):
                    self._write_file(number, position.nbytes if number == position.file else 0, progress)
            except TensorError:
                self._discard()
                raise
            self.journal.save(Position(len(self.plan.files), 0))
            self._finish()

    def _reclaimed_bytes(self) -> int:
        """Space of unfinished files beyond what is kept of them: it is freed before anything is written."""
        total = 0
        for number, file in enumerate(self.plan.files):
            path = part_path(file.path)
            if number < self.position.file or not path.is_file():
                continue
            kept = self.position.nbytes if number == self.position.file else 0
            total += max(0, path.stat().st_blocks * 512 - kept)
        return total

    def _write_file(self, number: int, start: int, progress: Progress) -> None:
        """Writes file `number` from byte `start`, which is 0 or the end of a unit, on."""
        file = self.plan.files[number]
        units = list(_units(file, self.checkpoint))
        largest = max([len(file.header), *(size for _, _, size, _ in units)])

        def save(nbytes: int) -> None:
            self.journal.save(Position(number, nbytes))

        with Sink(part_path(file.path), start, largest + ALIGNMENT, progress, save) as sink:
            if start == 0:
                sink.take(len(file.header))[:] = np.frombuffer(file.header, np.uint8)
                sink.commit(len(file.header))
            _produce(units, start, sink)
        if sink.position != file.nbytes:
            raise OutputError(file.path.name, found=f"{sink.position} bytes", wanted=file.nbytes)

    def _finish(self) -> None:
        """Gives the files their names; the first of a split comes last, since loading starts with it.

        A run that was stopped in here left some renamed; the lock may have made an empty temporary file anew.
        """
        for file in reversed(self.plan.files):
            part = part_path(file.path)
            if part.is_file() and part.stat().st_size != file.nbytes:
                part.unlink()
            elif part.is_file():
                os.replace(part, file.path)
        self.journal.remove()
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _discard(self) -> None:
        self.journal.remove()
        for file in self.plan.files:
            with suppress(FileNotFoundError):
                part_path(file.path).unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps a second run away from the same temporary files."""
        path = part_path(self.plan.files[0].path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(f"another run is writing {path.name}") from None
        try:
            yield
        finally:
            os.close(descriptor)


Unit = tuple[TensorStream, int, int, int]  # stream, unit, bytes, offset in the file


def _units(file: PlannedFile, checkpoint: Checkpoint) -> Iterator[Unit]:
    """All units of a file in order."""
    repacker = Repacker()
    for tensor, offset in zip(file.tensors, file.offsets, strict=True):
        stream = open_stream(tensor, checkpoint, repacker)
        for unit, size in enumerate(stream.unit_sizes()):
            yield stream, unit, size, offset
            offset += size


def _produce(units: list[Unit], start: int, sink: Sink) -> None:
    """Computes the units from byte `start` on into the sink, reading one unit ahead."""
    units = [unit for unit in units if unit[3] >= start]
    for index, (stream, unit, size, offset) in enumerate(units):
        if index + 1 < len(units):
            units[index + 1][0].prefetch(units[index + 1][1])
        # The gap to the next tensor, if this unit ends one, is filled with zeros.
        end = units[index + 1][3] if index + 1 < len(units) else align(offset + size)
        out = sink.take(end - offset)
        stream.produce(unit, out[:size])
        out[size:] = 0
        sink.commit(end - offset)
