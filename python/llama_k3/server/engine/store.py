"""CacheStore: what is kept of sequences beside the slots' own present state, within a budget of bytes.

Checkpoints of slots, parked sequences in memory, and files of the second tier. What is to be kept, and
why, is decided in prefix_cache.py; here is what has to go for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from ...context import Checkpoint, Context, Snapshot
from ...errors import LlamaK3Error, OutOfMemoryError
from .disk import DiskEntry, DiskTier, Identity
from .options import EngineOptions
from .parked import ParkedEntry, ParkedTier, TokenArray, starts_with

log = logging.getLogger(__name__)

# More than a snapshot has beside tokens, rows and states: header and padding; and with each checkpoint.
_BLOCK_EXTRA, _CHECKPOINT_EXTRA = 512, 16


@dataclass(frozen=True)
class Match:
    """A prefix that was found. `source`: a slot or a stored sequence; `common`: equal tokens; `limit`: of
    these, what leaves a token to evaluate; `usable`: the newest point in it to go on from, 0: none."""

    source: int | ParkedEntry | DiskEntry
    common: int
    limit: int
    usable: int


class CacheStore:
    """Never holds more than `limit` bytes after any call; what was used or made the longest ago goes first.

    Parked sequences are written to the second tier once half of the limit is used, so that they are there
    when they have to go: nothing waits for the disk.
    """

    def __init__(self, context: Context, options: EngineOptions, model_digest: int) -> None:
        """StateOpenError: the folder of the second tier cannot be used."""
        self._context = context
        self._n_slots = context.params.n_seq_max
        self.limit = options.cache_ram
        self.parked = ParkedTier()
        self._reads: dict[Future[Snapshot], int] = {}  # bytes of files being read
        self._abandoned: set[Future[Snapshot]] = set()
        self._clock = 0
        self._checkpoint_used: dict[int, int] = {}  # clock of the last use by id
        memory = context.memory()
        self.checkpoint_bytes = (memory.state + memory.window) // (2 * self._n_slots)
        self._row_bytes = memory.latent // (context.params.n_ctx * self._n_slots)
        self._disk: DiskTier | None = None
        if options.cache_disk is not None and options.cache_disk_size > 0:
            identity = Identity(model_digest, options.kv_type)
            self._disk = DiskTier(options.cache_disk, options.cache_disk_size, identity, context.params.n_ctx)

    @property
    def ram_bytes(self) -> int:
        held = self._context.memory().snapshots + self.parked.size + sum(self._reads.values())
        writing = self._disk.writing if self._disk else None
        return held + (writing.size if writing is not None and writing not in self.parked else 0)

    @property
    def disk_bytes(self) -> int:
        return self._disk.size if self._disk else 0

    @property
    def files(self) -> list[DiskEntry]:
        return self._disk.entries if self._disk else []

    @property
    def n_entries(self) -> int:
        """Sequences in memory, on disk, or both."""
        return len(self.files) + sum(not self._on_disk(entry) for entry in self.parked)

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    # ---- checkpoints -----------------------------------------------------------------------------------

    def checkpoint(self, slot: int) -> None:
        """Keep the slot's present state, if it fits."""
        position = self._context.position(slot)
        if position == 0:
            return
        if position not in self._positions(slot):
            if not self._make_room(lambda: self.checkpoint_bytes):
                log.debug("cache: no checkpoint of slot %d at %d: no room", slot, position)
                return
            try:
                self._context.checkpoint(slot)
            except OutOfMemoryError as error:
                log.warning("cache: %s", error)
        self._touch(slot, position)

    def adopt(self, slot: int, used: int) -> None:
        """The slot has got a sequence, which goes on from `used`. Its checkpoints count from now on; the one
        in use as the newest."""
        now = self.tick()
        for point in self._context.checkpoints(slot):
            self._checkpoint_used.setdefault(point.id, now)
        self._touch(slot, used)
        self._shrink()

    def _positions(self, slot: int) -> set[int]:
        return {point.position for point in self._context.checkpoints(slot)}

    def _touch(self, slot: int, position: int) -> None:
        for point in self._context.checkpoints(slot):
            if point.position == position:
                self._checkpoint_used[point.id] = self.tick()

    def _holders(self) -> dict[int, list[tuple[int, Checkpoint]]]:
        """All checkpoints by id, with the slots that share each."""
        holders: dict[int, list[tuple[int, Checkpoint]]] = {}
        for slot in range(self._n_slots):
            for point in self._context.checkpoints(slot):
                holders.setdefault(point.id, []).append((slot, point))
        return holders

    # ---- parked sequences ------------------------------------------------------------------------------

    def park(self, slot: int, keep: int, pinned: Match | None) -> None:
        """Keep a copy of a slot that is about to be cut at `keep`: with the checkpoints behind `keep`, for
        the others stay. Not if it does not fit. What `pinned` is made from is not evicted for it."""
        n_tokens = self._context.position(slot)
        first = keep + 1 if keep else 0
        if self._block_bytes(n_tokens, 0) > self.limit:
            log.debug("cache: slot %d, %d tokens: not parked: over the limit alone", slot, n_tokens)
        elif not self._make_room(lambda: self._parking_bytes(slot, n_tokens, first), pinned):
            log.debug("cache: slot %d, %d tokens: not parked: no room", slot, n_tokens)
        else:
            try:
                self.parked.add(self._entry_of(slot, first))
            except OutOfMemoryError as error:
                log.warning("cache: %s", error)
            else:
                log.debug("cache: slot %d, %d tokens: parked", slot, n_tokens)

    def is_covered(self, slot: int, tokens: TokenArray) -> bool:
        """Whether another slot, or a stored sequence, begins with the slot's tokens, which are given or a
        part of them, and has the slot's checkpoints in them."""
        needed = {position for position in self._positions(slot) if position <= tokens.size}
        if any(
            needed <= set(e.points) and starts_with(e.tokens, tokens) for e in (*self.parked, *self.files)
        ):
            return True
        return any(
            needed <= self._positions(other) and starts_with(self._context.token_array(other), tokens)
            for other in range(self._n_slots)
            if other != slot
        )

    def restored(self, entry: ParkedEntry, whole: bool) -> None:
        """A slot has got the sequence; the whole of it goes on there, or only a part of it."""
        if whole:
            self.parked.remove(entry)
        entry.used = self.tick()

    def drop(self, unwanted: Callable[[TokenArray], bool]) -> None:
        """Drop stored sequences by their tokens."""
        for entry in self.parked:
            if unwanted(entry.tokens):
                self.parked.remove(entry)
        if self._disk:
            if self._disk.writing and unwanted(self._disk.writing.tokens):
                self._disk.discard_writing()
            for file in self.files:
                if unwanted(file.tokens):
                    self._disk.discard(file)

    def _entry_of(self, slot: int, checkpoints_from: int) -> ParkedEntry:
        tokens = self._context.token_array(slot)
        points = self._positions(slot) | {tokens.size}
        snapshot = self._context.snapshot(slot, checkpoints_from=checkpoints_from)
        kept = tuple(sorted(int(point) for point in points if point >= checkpoints_from))
        return ParkedEntry(tokens, kept, snapshot.size, self.tick(), snapshot)

    def _parking_bytes(self, slot: int, n_tokens: int, checkpoints_from: int) -> int:
        """What parking adds: checkpoints that no other slot has move with it."""
        moved = [
            len(slots) == 1
            for slots in self._holders().values()
            if any(holder == slot and point.position >= checkpoints_from for holder, point in slots)
        ]
        return self._block_bytes(n_tokens, len(moved)) - sum(moved) * self.checkpoint_bytes

    def _block_bytes(self, n_tokens: int, n_checkpoints: int) -> int:
        """At least the size of a snapshot."""
        states = (n_checkpoints + 1) * (self.checkpoint_bytes + _CHECKPOINT_EXTRA)
        return _BLOCK_EXTRA + n_tokens * (4 + self._row_bytes) + states

    # ---- limit -----------------------------------------------------------------------------------------

    def _make_room(self, needed: Callable[[], int], pinned: Match | None = None) -> bool:
        """Evict until `needed()` more bytes fit; False: they cannot."""
        if needed() > self.limit:
            return False
        while self.ram_bytes + needed() > self.limit:
            if not self._evict(pinned):
                return False
        return True

    def _shrink(self) -> None:
        while self.ram_bytes > self.limit and self._evict(None):
            pass

    def _evict(self, pinned: Match | None) -> bool:
        """Drop what was used the longest ago; False: there is nothing to drop."""
        writing = self._disk.writing if self._disk else None
        source = pinned.source if pinned else None
        entry = min(
            (held for held in self.parked if held is not writing and held is not source),
            key=lambda held: held.used,
            default=None,
        )
        holders = self._holders()
        self._checkpoint_used = {id: self._checkpoint_used.get(id, 0) for id in holders}
        oldest = min(
            (id for id, slots in holders.items() if not _is_pinned(pinned, slots)),
            key=lambda id: self._checkpoint_used[id],
            default=None,
        )
        if entry and (oldest is None or entry.used < self._checkpoint_used[oldest]):
            where = "on disk" if self._on_disk(entry) else "lost"
            log.debug("cache: a parked sequence of %d tokens makes room: %s", entry.tokens.size, where)
            self.parked.remove(entry)
        elif oldest is not None:
            for slot, point in holders[oldest]:
                log.debug("cache: checkpoint %d of slot %d makes room", point.position, slot)
                self._context.drop_checkpoint(slot, point.position)
        else:
            return False
        return True

    # ---- second tier -----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take note of what the other threads have done."""
        if self._disk:
            self._disk.collect()
        for future in [future for future in self._abandoned if future.done()]:
            self._abandoned.remove(future)
            self._reads.pop(future, None)

    def write_behind(self) -> None:
        """Keep the writer busy while memory is short."""
        if self._disk is None or self._disk.writing or self.ram_bytes <= self.limit // 2:
            return
        for entry in sorted(self.parked, key=lambda entry: entry.used):
            if not self._disk.covers(entry) and self._disk.write(entry):
                return

    def begin_read(self, entry: DiskEntry) -> Future[Snapshot] | None:
        """Start to read a file. None: there is no room for it in memory."""
        if self._disk is None or not self._make_room(lambda: entry.block_size):
            log.debug("cache: %s not read: no room for %d bytes", entry.name, entry.block_size)
            return None
        future = self._disk.read(entry)
        self._reads[future] = entry.block_size
        return future

    def end_read(self, future: Future[Snapshot]) -> None:
        """What was read is used, or of no use."""
        self._reads.pop(future, None)

    def abandon_read(self, future: Future[Snapshot]) -> None:
        """Its memory counts until the reader is done with it."""
        future.cancel()
        self._abandoned.add(future)
        self.collect()

    def discard(self, entry: DiskEntry) -> None:
        """Remove a file."""
        if self._disk:
            self._disk.discard(entry)

    def _on_disk(self, entry: ParkedEntry) -> bool:
        return self._disk is not None and self._disk.holds(entry)

    def close(self, slots: Iterable[int]) -> None:
        """End the threads, after writing to the second tier what is parked and the sequences of these slots,
        the most important one last."""
        disk, self._disk = self._disk, None
        if disk is None:
            return
        try:
            for entry in sorted(self.parked, key=lambda entry: entry.used):
                _write_and_wait(disk, entry)
            for slot in slots:
                if self.limit and self._context.position(slot):
                    _write_and_wait(disk, self._entry_of(slot, 0))
        except LlamaK3Error as error:
            log.warning("cache: %s", error)
        finally:
            disk.close()


def _is_pinned(pinned: Match | None, holders: list[tuple[int, Checkpoint]]) -> bool:
    return pinned is not None and any(
        slot == pinned.source and point.position == pinned.usable for slot, point in holders
    )


def _write_and_wait(disk: DiskTier, entry: ParkedEntry) -> None:
    disk.collect(wait=True)
    if not disk.covers(entry) and disk.write(entry):
        disk.collect(wait=True)
