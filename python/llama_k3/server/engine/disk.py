"""The second tier: parked sequences as files of one folder, the least recently used removed first.

A file is a header (what the sequence is, so that an index can be made from headers alone) followed by
a snapshot's bytes, which carry their own checksums. Files are written by one thread and read by
another; the index belongs to the engine's thread. Anything can happen to a file: one that is missing
or damaged is a miss.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...context import Snapshot
from ...errors import LlamaK3Error, StateFormatError
from . import files
from .parked import ParkedEntry, Stored, TokenArray

log = logging.getLogger(__name__)

SUFFIX = ".k3seq"
_OUR_NAME = re.compile(r"[0-9a-f]{16}-\w+-[0-9a-f]{32}" + re.escape(SUFFIX))
_MAGIC, _VERSION = b"LK3PARK\n", 1
_CHECKSUM_BYTES = 16
# magic, version, KV type, model digest, tokens, points, bytes of the snapshot
_FIXED = struct.Struct("<8sI8sQQQQ")


class Identity(NamedTuple):
    """What a file has to be of to be of use here."""

    model_digest: int
    kv_type: str


class _Header(NamedTuple):
    identity: Identity
    tokens: TokenArray
    points: tuple[int, ...]
    block_size: int
    size: int  # of the header itself
    checksum: bytes


@dataclass(eq=False)
class DiskEntry(Stored):
    """One file. `size`: bytes of the whole file; `ours` False: of another model or KV type, never a hit."""

    name: str
    block_size: int
    checksum: bytes
    ours: bool = True


class DiskTier:
    """Parked sequences in a folder that holds at most `limit` bytes of them."""

    def __init__(self, folder: Path, limit: int, identity: Identity, n_ctx: int) -> None:
        """Makes the folder and reads the headers of what is in it. StateOpenError: it cannot be used."""
        self._folder = files.open_folder(folder)
        self._path, self._limit, self._identity, self._n_ctx = folder, limit, identity, n_ctx
        self._clock = 0
        self._entries: dict[str, DiskEntry] = {}
        self._writer = ThreadPoolExecutor(1, "cache-writer")
        self._reader = ThreadPoolExecutor(1, "cache-reader")
        self._write: tuple[ParkedEntry, DiskEntry, Future[None]] | None = None
        self._unwanted = False  # what is being written is to be removed again
        files.remove_stale_temps(self._folder)
        self._read_index()
        self._make_room(0)

    @property
    def entries(self) -> list[DiskEntry]:
        """Those that may be read."""
        return [entry for entry in self._entries.values() if entry.ours]

    @property
    def size(self) -> int:
        """Bytes of all files, and of what is being written."""
        written = sum(entry.size for entry in self._entries.values())
        return written + (self._write[1].size if self._write else 0)

    @property
    def writing(self) -> ParkedEntry | None:
        """What the writer is busy with."""
        return self._write[0] if self._write else None

    def holds(self, entry: ParkedEntry) -> bool:
        """Whether there is a file of it."""
        return self._name(entry) in self._entries

    def covers(self, entry: ParkedEntry) -> bool:
        """Whether there is a file of it, or one that can stand in for it."""
        return self.holds(entry) or any(file.replaces(entry) for file in self.entries)

    def write(self, entry: ParkedEntry) -> bool:
        """Begin to write a file; False: it alone is over the limit. Only while nothing is `writing`.

        What has to go for it is removed before. The entry's snapshot has to stay open until `collect`
        has seen the end.
        """
        header, checksum = _encode(self._identity, entry)
        size = len(header) + entry.size
        if size > self._limit:
            log.debug("cache on disk: a sequence of %d bytes is over the limit of %d", size, self._limit)
            return False
        self._make_room(size)
        name = self._name(entry)
        file = DiskEntry(entry.tokens, entry.points, size, self._tick(), name, entry.size, checksum)
        future = self._writer.submit(self._write_file, name, header, entry.snapshot)
        self._write = (entry, file, future)
        self._unwanted = False
        return True

    def collect(self, wait: bool = False) -> None:
        """Take note of a write that has ended, or wait for its end."""
        if self._write is None or not (wait or self._write[2].done()):
            return
        (_, file, future), self._write = self._write, None
        try:
            future.result()
        except LlamaK3Error as error:
            log.warning("cache on disk: %s", error)
            return
        if self._unwanted:
            self._unlink(file.name)
            return
        for held in self.entries:
            if held.name != file.name and file.replaces(held):
                self.discard(held)
        self._entries[file.name] = file

    def read(self, entry: DiskEntry) -> Future[Snapshot]:
        """Read a file. The future's errors: LlamaK3Error for whatever is wrong with it."""
        entry.used = self._tick()
        return self._reader.submit(self._read_file, entry)

    def discard(self, entry: DiskEntry) -> None:
        """Remove a file."""
        self._entries.pop(entry.name, None)
        self._unlink(entry.name)

    def discard_writing(self) -> None:
        """Remove what is being written as soon as it is there."""
        self._unwanted = True

    def close(self) -> None:
        """Wait for the threads and let go of the folder; the files stay."""
        self.collect(wait=True)
        self._reader.shutdown()
        self._writer.shutdown()
        os.close(self._folder)

    # ---- engine's thread -------------------------------------------------------------------------------

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _name(self, entry: ParkedEntry) -> str:
        return f"{self._identity.model_digest:016x}-{self._identity.kv_type}-{entry.key}{SUFFIX}"

    def _unlink(self, name: str) -> None:
        """In order with the writes."""
        self._writer.submit(files.remove, self._folder, name)

    def _make_room(self, size: int) -> None:
        for entry in sorted(self._entries.values(), key=lambda entry: entry.used):
            if self.size + size <= self._limit:
                return
            log.debug("cache on disk: %s makes room", entry.name)
            self.discard(entry)

    def _read_index(self) -> None:
        """Entries of the folder, the oldest first. One of our names that is damaged is removed."""
        found = []
        for name in os.listdir(self._folder):
            if not _OUR_NAME.fullmatch(name):
                log.info("cache on disk: %s ignored, not ours", name)
                continue
            try:
                found.append(self._index_entry(name))
            except StateFormatError as error:
                log.warning("cache on disk: %s removed: %s", name, error)
                self._unlink(name)
            except LlamaK3Error as error:
                log.warning("cache on disk: %s ignored: %s", name, error)
        for _, entry in sorted(found, key=lambda pair: pair[0]):
            entry.used = self._tick()
            self._entries[entry.name] = entry
        log.info("cache on disk: %d sequences, %d bytes in %s", len(self.entries), self.size, self._path)

    def _index_entry(self, name: str) -> tuple[int, DiskEntry]:
        """(time of last use, entry) of a file."""
        fd = files.open_in_folder(self._folder, name)
        try:
            status = os.fstat(fd)
            header = _read_header(fd, status.st_size)
        finally:
            os.close(fd)
        ours = header.identity == self._identity and header.tokens.size <= self._n_ctx
        entry = DiskEntry(
            header.tokens, header.points, status.st_size, 0, name, header.block_size, header.checksum, ours
        )
        return status.st_mtime_ns, entry

    # ---- other threads ---------------------------------------------------------------------------------

    def _write_file(self, name: str, header: bytes, snapshot: Snapshot) -> None:
        files.write_atomic(self._folder, name, [header, snapshot.data()])

    def _read_file(self, entry: DiskEntry) -> Snapshot:
        fd = files.open_in_folder(self._folder, entry.name)
        try:
            header = _read_header(fd, os.fstat(fd).st_size)
            if header.checksum != entry.checksum:
                raise StateFormatError(f"{entry.name}: found another sequence than was written")
            snapshot = Snapshot.of_size(header.block_size)
            files.read_into(fd, snapshot.data())
            with suppress(OSError):  # the order of use outlives this process
                now = time.time_ns()
                os.utime(fd, ns=(now, now))
            return snapshot
        except OSError as error:
            raise StateFormatError(f"{entry.name}: not read: {error.strerror}") from None
        finally:
            os.close(fd)


def _encode(identity: Identity, entry: ParkedEntry) -> tuple[bytes, bytes]:
    """(header with its checksum, the checksum)."""
    fixed = _FIXED.pack(
        _MAGIC,
        _VERSION,
        identity.kv_type.encode(),
        identity.model_digest,
        entry.tokens.size,
        len(entry.points),
        entry.size,
    )
    body = fixed + entry.tokens.astype("<i4").tobytes() + np.array(entry.points, "<i8").tobytes()
    checksum = hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
    return body + checksum, checksum


def _read_header(fd: int, file_size: int) -> _Header:
    """From the start of a file. StateFormatError: it is none of ours, or damaged."""
    fixed = _read_exactly(fd, _FIXED.size, file_size)
    magic, version, kv_type, digest, n_tokens, n_points, block_size = _FIXED.unpack(fixed)
    if magic != _MAGIC or version != _VERSION:
        raise StateFormatError(f"found magic {magic!r}, version {version}, wanted {_MAGIC!r}, {_VERSION}")
    size = _FIXED.size + 4 * n_tokens + 8 * n_points + _CHECKSUM_BYTES
    if size + block_size != file_size:
        raise StateFormatError(f"found {file_size} bytes, wanted {size + block_size}")
    rest = _read_exactly(fd, size - _FIXED.size, file_size)
    body, checksum = fixed + rest[:-_CHECKSUM_BYTES], rest[-_CHECKSUM_BYTES:]
    if hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() != checksum:
        raise StateFormatError("the header's checksum does not match")
    tokens = np.frombuffer(rest, "<i4", n_tokens).astype(np.int32)
    points = tuple(np.frombuffer(rest, "<i8", n_points, 4 * n_tokens).tolist())
    ascending = all(a < b for a, b in zip((0, *points), points, strict=False))
    if not points or not ascending or points[-1] != n_tokens:
        raise StateFormatError(
            f"found points {points[-1:]} of {n_tokens} tokens, wanted them to ascend to it"
        )
    identity = Identity(digest, kv_type.rstrip(b"\0").decode("ascii", "replace"))
    return _Header(identity, tokens, points, block_size, size, checksum)


def _read_exactly(fd: int, size: int, file_size: int) -> Any:
    if size > file_size:
        raise StateFormatError(f"found {file_size} bytes, wanted at least {size}")
    data = bytearray(size)
    files.read_into(fd, data)
    return bytes(data)
