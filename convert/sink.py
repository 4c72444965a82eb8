"""Writes one file from front to back in large aligned blocks, past the page cache where the system allows it.

Direct writes cost a small part of the processor time of cached ones, and a conversion of terabytes does not
push everything else out of the page cache. One thread fills buffers; another writes them; a third forces what
is written to the disk and reports how far that is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .errors import DiskSpaceError, OutputError
from .quant import Bytes

N_BUFFERS = 3
# Offsets, sizes and addresses of direct writes are multiples of this.
SECTOR = 4096
BUFFER_BYTES = 16 << 20
# Written bytes between two reports of what is safe.
SYNC_BYTES = 256 << 20

_DIRECT = getattr(os, "O_DIRECT", 0)
# Without the file's times where the system can do so.
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Sink:
    """One output file, used as a context: on leaving, all that was committed is on the disk and reported,
    after an error or Ctrl-C too.

    `progress` gets the bytes of every write. `save` gets a position: everything before it is on the disk, and
    it is the start or the end of a commit.
    """

    def __init__(
        self,
        path: Path,
        start: int,
        unit_bytes: int,
        progress: Callable[[int], None],
        save: Callable[[int], None],
    ) -> None:
        """Goes on after the first `start` bytes which stay; `unit_bytes` is the largest `take`."""
        self.position = start
        self._written = start
        self._safe = start
        self._commits: deque[int] = deque()
        self._progress = progress
        self._save = save
        self._error: BaseException | None = None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._descriptor, start)
        size = max(BUFFER_BYTES, unit_bytes + SECTOR)
        size = -(-size // SECTOR) * SECTOR
        self._free: queue.Queue[Bytes] = queue.Queue()
        for _ in range(N_BUFFERS):
            self._free.put(np.frombuffer(mmap.mmap(-1, size), np.uint8))
        self._full: queue.Queue[tuple[Bytes, int, int] | None] = queue.Queue()
        self._buffer = self._free.get()
        # The file offset of the buffer's first byte, a whole sector; the part before `start` is read back.
        self._base = start - start % SECTOR
        kept = start - self._base
        self._buffer[:kept] = np.frombuffer(os.pread(self._descriptor, kept, self._base), np.uint8)
        self._set_direct(True)
        self._writing = threading.Thread(target=self._run, daemon=True)
        self._syncing: threading.Thread | None = None

    def __enter__(self) -> Sink:
        self._writing.start()
        return self

    def __exit__(self, kind: object, *unused: object) -> None:
        self._full.put((self._buffer, self._base, self.position - self._base))
        self._full.put(None)
        self._writing.join()
        if self._syncing is not None:
            self._syncing.join()
        if self._error is None:
            os.ftruncate(self._descriptor, self.position)
            self._sync(self.position)
        os.close(self._descriptor)
        if kind is None:
            self._raise_error()

    def take(self, nbytes: int) -> Bytes:
        """Room for the next `nbytes` of the file, to be filled and then committed."""
        self._raise_error()
        filled = self.position - self._base
        if filled + nbytes > self._buffer.size:
            self._hand_over()
            filled = self.position - self._base
        return self._buffer[filled : filled + nbytes]

    def commit(self, nbytes: int) -> None:
        """Makes the first `nbytes` of the room taken a part of the file."""
        self.position += nbytes
        self._commits.append(self.position)

    def _hand_over(self) -> None:
        """Gives the buffer's whole sectors to the writing thread and goes on in a free one with the rest."""
        filled = self.position - self._base
        rest = filled % SECTOR
        following = self._free.get()
        following[:rest] = self._buffer[filled - rest : filled]
        self._full.put((self._buffer, self._base, filled - rest))
        self._buffer, self._base = following, self.position - rest

    def _run(self) -> None:
        while (item := self._full.get()) is not None:
            buffer, base, nbytes = item
            try:
                if self._error is None:
                    self._write(buffer, base, nbytes)
                    self._start_sync()
            except BaseException as error:  # handed to the other thread, which would wait for ever otherwise
                self._error = error
            self._free.put(buffer)

    def _write(self, buffer: Bytes, base: int, nbytes: int) -> None:
        """Writes a buffer's first bytes. A part of a sector goes with zeros, which are cut off at the end."""
        whole = -(-nbytes // SECTOR) * SECTOR
        buffer[nbytes:whole] = 0
        done = 0
        while done < whole:
            try:
                done += os.pwrite(self._descriptor, buffer[done:whole].data, base + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)
        self._progress(base + nbytes - self._written)
        self._written = base + nbytes

    def _set_direct(self, direct: bool) -> None:
        """Switches direct writing on or off; some file systems refuse it, here or at the first write."""
        self._direct = False
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if direct else 0))
            self._direct = direct and _DIRECT != 0

    def _start_sync(self) -> None:
        """Starts forcing the written bytes to the disk, where enough are new and no other such run is on."""
        busy = self._syncing is not None and self._syncing.is_alive()
        if not busy and self._written - self._safe >= SYNC_BYTES:
            self._syncing = threading.Thread(target=self._sync, args=(self._written,), daemon=True)
            self._syncing.start()

    def _sync(self, written: int) -> None:
        """Forces everything before `written` to the disk and reports the last commit that lies before it."""
        try:
            _sync_data(self._descriptor)
            while self._commits and self._commits[0] <= written:
                self._safe = self._commits.popleft()
            self._save(self._safe)
        except OSError as error:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is None:
            return
        if not isinstance(self._error, OSError):
            raise self._error
        reason = self._error.strerror or str(self._error)
        if self._error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskSpaceError(f"{reason} after {self._safe} safe bytes; free some and run again")
        raise OutputError(f"{reason} after {self._safe} safe bytes")
