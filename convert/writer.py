"""Writes a plan: streams every tensor into files of a temporary name and renames them when all is complete.

The caller's thread reads and repacks a unit while another writes the one before. Buffers are few and reused,
so that memory stays the same for any size of model. At intervals the written bytes are forced to the disk and
noted in the journal; a stopped run goes on from there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from .checkpoint import Checkpoint
from .errors import BusyError, DiskSpaceError, OutputError, TensorError
from .header import align
from .journal import Journal, Position, part_path
from .mxfp4 import Repacker
from .plan import Plan, PlannedFile, plan_digest
from .quant import Bytes
from .stream import TensorStream, open_stream

N_BUFFERS = 3
# Written bytes between two journal entries.
SYNC_BYTES = 256 << 20

Progress = Callable[[int], None]

# Without the file's times where the system can do so.
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


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
        descriptor = os.open(part_path(file.path), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, start)
            units = list(_units(file, self.checkpoint))
            sizes = [size for _, _, size, _ in units]

            def save(nbytes: int) -> None:
                self.journal.save(Position(number, nbytes))

            sink = _Sink(descriptor, start, max(sizes, default=0), progress, save)
            with sink:
                if start == 0:
                    sink.put_bytes(file.header)
                _produce(units, start, sink)
            if sink.position != file.nbytes:
                raise OutputError(file.path.name, found=f"{sink.position} bytes", wanted=file.nbytes)
        finally:
            os.close(descriptor)

    def _finish(self) -> None:
        """Gives the files their names; the first of a split comes last, since loading starts with it."""
        for file in reversed(self.plan.files):
            os.replace(part_path(file.path), file.path)
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


def _produce(units: list[Unit], start: int, sink: _Sink) -> None:
    """Computes the units from byte `start` on and hands them to the sink, reading one unit ahead."""
    units = [unit for unit in units if unit[3] >= start]
    for index, (stream, unit, size, offset) in enumerate(units):
        if index + 1 < len(units):
            units[index + 1][0].prefetch(units[index + 1][1])
        buffer = sink.take()
        stream.produce(unit, buffer[:size])
        # The gap to the next tensor, if this unit ends one, is filled with zeros.
        end = units[index + 1][3] if index + 1 < len(units) else align(offset + size)
        padding = end - offset - size
        buffer[size : size + padding] = 0
        sink.put(buffer, size + padding)


class _Sink:
    """The writing thread of one file, fed with buffers in file order.

    Beside it a second thread forces what is written to the disk and notes it, while the writing goes on. Used
    as a context: on leaving, all that was put is written and noted, also after an error or Ctrl-C.
    """

    PADDING = 64

    def __init__(
        self, descriptor: int, start: int, unit_bytes: int, progress: Progress, save: Callable[[int], None]
    ) -> None:
        self.position = start
        self._descriptor = descriptor
        self._synced = start
        self._progress = progress
        self._save = save
        self._error: BaseException | None = None
        self._full: queue.Queue[tuple[Bytes, int] | None] = queue.Queue()
        self._free: queue.Queue[Bytes] = queue.Queue()
        for _ in range(N_BUFFERS):
            self._free.put(np.empty(unit_bytes + self.PADDING, np.uint8))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._syncing: threading.Thread | None = None

    def __enter__(self) -> _Sink:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *unused: object) -> None:
        self._full.put(None)
        self._thread.join()
        if self._syncing is not None:
            self._syncing.join()
        if self._error is None:
            self._sync(self.position)
        if kind is None:
            self._raise_error()

    def take(self) -> Bytes:
        """A buffer to fill; waits until one is free."""
        buffer = self._free.get()
        self._raise_error()
        return buffer

    def put(self, buffer: Bytes, nbytes: int) -> None:
        """Hands a buffer from `take` over for writing."""
        self._full.put((buffer, nbytes))

    def put_bytes(self, data: bytes) -> None:
        """Writes data that does not come in a buffer, before any that does."""
        self._write(memoryview(data))

    def _run(self) -> None:
        while (item := self._full.get()) is not None:
            buffer, nbytes = item
            try:
                if self._error is None:
                    self._write(buffer[:nbytes].data)
                    self._start_sync()
            except BaseException as error:  # handed to the other thread, which would wait for ever otherwise
                self._error = error
            self._free.put(buffer)

    def _write(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], self.position + done)
        self.position += done
        self._progress(done)

    def _start_sync(self) -> None:
        """Starts forcing the written bytes to the disk, where enough are new and no other such run is on."""
        busy = self._syncing is not None and self._syncing.is_alive()
        if not busy and self.position - self._synced >= SYNC_BYTES:
            self._syncing = threading.Thread(target=self._sync, args=(self.position,), daemon=True)
            self._syncing.start()

    def _sync(self, position: int) -> None:
        """Forces everything before `position`, which is written, to the disk and notes it."""
        try:
            _sync_data(self._descriptor)
            self._save(position)
            self._synced = position
        except OSError as error:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is None:
            return
        if not isinstance(self._error, OSError):
            raise self._error
        reason = self._error.strerror or str(self._error)
        if self._error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskSpaceError(f"{reason} after {self._synced} safe bytes; free some and run again")
        raise OutputError(f"{reason} after {self._synced} safe bytes")
