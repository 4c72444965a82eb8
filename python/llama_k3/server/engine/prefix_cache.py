"""The hybrid prefix cache: which slot a prompt goes to, what it finds there, and what is kept for later.

Used on the engine's thread only, between two decode calls. What a slot holds is read from the
context, never remembered here, so that tokens and state cannot disagree.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ...context import Context, Snapshot
from ...errors import ArgumentError, LlamaK3Error, StateError
from .disk import DiskEntry
from .options import EngineOptions
from .parked import ParkedEntry, TokenArray, common_prefix, newest_point, starts_with
from .store import CacheStore, Match

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheStats:
    """Sums since the start. Sizes in bytes; `entries`: parked sequences, in memory or on disk."""

    hits: int
    misses: int
    cached_tokens: int
    ram_bytes: int
    ram_limit: int
    disk_bytes: int
    entries: int


@dataclass(frozen=True)
class Placement:
    """Where a prompt goes. The slot holds exactly the first `n_cached` tokens of it: decode the rest.

    `reason`: one line for the log. `pending`: not None while a file is being read: the slot is taken,
    its sequence is unchanged. Once the future is done (add_done_callback may wake the engine), call
    `PrefixCache.finish`, which gives the final placement (or `abandon` when the request is gone).
    """

    slot: int
    n_cached: int
    reason: str
    pending: Future[Snapshot] | None = None


@dataclass
class _Slot:
    """What is known of a slot beside its sequence: its request, or the last one it had.

    `active`: between `place` and `release`. `answer_from`: where the last message of the prompt ends, or
    what was reused if that is more: what follows is only an answer, which nobody asks for once it was
    replaced; None: not known. `stops`: where the prompt is to be cut. `match`: of the file it waits for.
    """

    prompt: TokenArray = field(default_factory=lambda: np.zeros(0, np.int32))
    boundaries: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    answer_from: int | None = None
    n_cached: int = 0
    active: bool = False
    used: int = 0
    match: Match | None = None


def plan_stops(
    n_prompt: int, boundaries: Iterable[int], start: int, min_step: int, every: int
) -> tuple[int, ...]:
    """Where to keep checkpoints in a prompt of which `start` tokens are there, ascending.

    At message ends at least `min_step` behind the point before; at the last message's end and before the
    prompt's last token in any case; not more than `every` apart (0: no such limit).
    """
    last = n_prompt - 1
    ends = sorted({end for end in boundaries if start < end < last})
    always = {last, *ends[-1:]}
    stops: list[int] = []
    point = start
    for end in [*ends, last]:
        while every and end - point > every:
            point += every
            stops.append(point)
        if end > point and (end in always or end - point >= min_step):
            point = end
            stops.append(point)
    return tuple(stops)


class PrefixCache:
    """Policy and bookkeeping over the sequences 0 .. n_parallel - 1 of a context.

    The context is made with `snapshot_every=0` and `snapshot_bytes=2**64 - 1`: eviction is done here.

    How the engine uses it, for each request:
        placement = cache.place(prompt, boundaries, idle, busy, ...)
        if placement.pending: wait for it without stalling others; placement = cache.finish(placement)
        while position < len(prompt):      # position starts at placement.n_cached
            decode prompt[position:min(cache.next_stop(slot, position), ...)]
            if position == the stop: cache.checkpoint(slot)      # before anything else is decoded there
        ... generate ...
        cache.release(slot)                # however the request ended
    """

    def __init__(self, context: Context, options: EngineOptions, model_digest: int) -> None:
        """Opens the folder of the second tier where there is one: StateOpenError."""
        self._context = context
        self._options = options
        self._store = CacheStore(context, options, model_digest)
        self._slots = [_Slot() for _ in range(context.params.n_seq_max)]
        self._hits = self._misses = self._cached_tokens = 0

    # ---- a request -------------------------------------------------------------------------------------

    def place(
        self,
        prompt: Sequence[int],
        boundaries: Sequence[int],
        idle: Collection[int],
        busy: Collection[int],
        allow_reuse: bool = True,
        wanted_slot: int | None = None,
    ) -> Placement:
        """Choose one of the idle slots and leave in it the longest prefix that can be reused, always fewer
        than len(prompt) tokens.

        `busy`: slots whose sequences may be copied from: running, or waiting for `finish`. `wanted_slot`:
        one of `idle`. What the chosen slot held and nothing else holds is parked first. ArgumentError: no
        slot is idle, or the wanted one is not.
        """
        if not idle or (wanted_slot is not None and wanted_slot not in idle):
            wanted = "one" if wanted_slot is None else f"slot {wanted_slot}"
            raise ArgumentError(f"idle slots: found {sorted(idle)}, wanted {wanted}")
        self._store.collect()
        ids, targets = np.asarray(prompt, np.int32), idle if wanted_slot is None else (wanted_slot,)
        request = _Slot(ids, tuple(boundaries), active=True)
        if not allow_reuse:
            return self._begin_miss(request, self._target(None, targets), "cache off for this request")
        match = self._search(ids, [*idle, *busy], files=True)
        if match and isinstance(match.source, DiskEntry):
            future = self._store.begin_read(match.source)
            if future:
                return self._wait(request, self._target(None, targets), match, future)
            match = self._search(ids, [*idle, *busy], files=False)
        return self._begin(request, targets, match)

    def finish(self, placement: Placement) -> Placement:
        """Put what `pending` read into its slot. A file that could not be read makes a shorter hit or a
        miss."""
        slot, future = placement.slot, placement.pending
        request, match = self._slots[slot], self._slots[slot].match
        assert future is not None and match is not None and isinstance(match.source, DiskEntry)
        request.match = None
        self._store.collect()
        try:
            snapshot = future.result()
            self._keep_old(slot, match)
            self._context.restore(slot, snapshot)
            snapshot.close()  # the future holds it on
        except LlamaK3Error as error:
            log.warning("cache: %s: %s", match.source.name, error)
            if isinstance(error, StateError):
                self._store.discard(match.source)
            self._store.end_read(future)
            found = self._search(request.prompt, range(len(self._slots)), files=False)
            return self._begin(request, (slot,), found)
        self._store.end_read(future)
        return self._begin_hit(request, slot, match, "from disk")

    def abandon(self, placement: Placement) -> None:
        """The request of a placement with `pending` is gone: its slot is as it was before `place`."""
        if placement.pending is not None:
            self._store.abandon_read(placement.pending)
            known = self._slots[placement.slot]
            self._slots[placement.slot] = _Slot(used=known.used)

    def next_stop(self, slot: int, position: int) -> int:
        """The next position behind `position` at which the prompt of the slot is to be cut for a
        checkpoint; the prompt's length when there is none."""
        known = self._slots[slot]
        return next((stop for stop in known.stops if stop > position), known.prompt.size)

    def checkpoint(self, slot: int) -> None:
        """Keep the slot's present state, if it fits the budget. To be called at each `next_stop` but the
        prompt's length (there it does no harm)."""
        self._store.checkpoint(slot)
        self._store.write_behind()

    def release(self, slot: int) -> None:
        """The slot's request is over; its sequence stays for the next one."""
        known = self._slots[slot]
        known.active = False
        known.used = self._store.tick()
        self._store.collect()
        self._store.write_behind()

    def failed(self, slot: int) -> None:
        """The slot's logits were not finite: clear it, and drop everything that its prompt was reused from
        or could be reused from again. Ends the request as `release` does."""
        suspect = self._slots[slot].prompt[: self._slots[slot].n_cached]
        self._context.clear(slot)
        self._slots[slot] = _Slot(used=self._store.tick())
        if suspect.size == 0:
            return
        log.warning("cache: slot %d: all that shares its %d reused tokens is dropped", slot, suspect.size)
        self._store.drop(lambda held: common_prefix(held, suspect) > 0)
        for other, known in enumerate(self._slots):
            if common_prefix(self._context.token_array(other), suspect) > 0:
                for point in self._context.checkpoints(other):
                    self._context.drop_checkpoint(other, point.position)
                if not known.active:
                    self._context.clear(other)

    # ---- slot files ------------------------------------------------------------------------------------

    def save(self, slot: int) -> Snapshot:
        """The slot's sequence with its checkpoints; `bytes(snapshot.data())` has the format of
        Context.save."""
        return self._context.snapshot(slot, checkpoints_from=0)

    def load(self, slot: int, snapshot: Snapshot) -> int:
        """Put a saved sequence into an idle slot, whose old one is parked; tokens restored. StateError and
        ContextFullError: the block does not fit, and the slot is as it was."""
        self._store.collect()
        self._keep_old(slot, None)
        self._context.restore(slot, snapshot)
        self._slots[slot] = _Slot(used=self._store.tick())
        position = self._context.position(slot)
        self._store.adopt(slot, position)
        return position

    def erase(self, slot: int) -> int:
        """Clear an idle slot, and drop the parked sequences that continue it or that it continues; the
        number of tokens dropped from the slot."""
        tokens = self._context.token_array(slot)
        self._context.clear(slot)
        self._slots[slot] = _Slot()
        if tokens.size:
            self._store.drop(lambda held: starts_with(held, tokens) or starts_with(tokens, held))
        return int(tokens.size)

    def stats(self) -> CacheStats:
        store = self._store
        return CacheStats(
            hits=self._hits,
            misses=self._misses,
            cached_tokens=self._cached_tokens,
            ram_bytes=store.ram_bytes,
            ram_limit=store.limit,
            disk_bytes=store.disk_bytes,
            entries=store.n_entries,
        )

    def close(self) -> None:
        """End the threads of the second tier, after writing to it what is parked and what slots hold."""
        self._store.close(sorted(range(len(self._slots)), key=lambda slot: self._slots[slot].used))

    # ---- search ----------------------------------------------------------------------------------------

    def _search(self, prompt: TokenArray, slots: Collection[int], files: bool) -> Match | None:
        """The longest usable prefix; of equally long ones the one that costs the least to go on from. None:
        no slot has a common prefix, and nothing that is stored a usable one."""
        best: Match | None = None
        best_key = (0, -1, 0)
        for slot in slots:
            points = [
                *(point.position for point in self._context.checkpoints(slot)),
                self._context.position(slot),
            ]
            match = _match(slot, self._context.token_array(slot), points, prompt)
            key = (match.usable, self._cheapness(match), match.common)
            if match.common and key > best_key:
                best, best_key = match, key
        usable, stored = best_key[0], None
        for entry in (*self._store.parked, *(self._store.files if files else ())):
            more = entry.usable(prompt, usable)
            if more:
                usable, stored = more, entry
        return best if stored is None else _match(stored, stored.tokens, stored.points, prompt)

    def _cheapness(self, match: Match) -> int:
        """2: goes on in place and nothing is lost. 0: another request runs there."""
        if not isinstance(match.source, int) or self._slots[match.source].active:
            return 0
        return 1 if self._loses(match.source, match.limit) else 2

    def _loses(self, slot: int, limit: int) -> bool:
        """Whether cutting the slot at `limit` loses more than an answer."""
        return limit < self._worth(slot)

    def _worth(self, slot: int) -> int:
        """Tokens of the slot before the answer."""
        answer_from, end = self._slots[slot].answer_from, self._context.position(slot)
        return end if answer_from is None else min(answer_from, end)

    def _target(self, match: Match | None, targets: Collection[int]) -> int:
        """The slot that a prompt goes to."""
        if match and match.source in targets and self._cheapness(match) == 2:
            assert isinstance(match.source, int)
            return match.source
        return min(targets, key=lambda slot: (self._context.position(slot) > 0, self._slots[slot].used, slot))

    # ---- placing ---------------------------------------------------------------------------------------

    def _wait(self, request: _Slot, target: int, match: Match, future: Future[Snapshot]) -> Placement:
        request.match, request.used = match, self._slots[target].used
        # what the slot still holds is parked by `finish` under the rules of the request it is from
        request.answer_from = self._slots[target].answer_from
        self._slots[target] = request
        reason = f"slot {target}: {match.usable} of {request.prompt.size} tokens are read from disk"
        return Placement(target, match.usable, reason, future)

    def _begin(self, request: _Slot, targets: Collection[int], match: Match | None) -> Placement:
        """Make a slot hold the prefix that was found in a slot or in memory."""
        if match is None:
            return self._begin_miss(request, self._target(None, targets), "miss: no common prefix")
        if match.usable == 0:
            why = f"miss: common {match.common} tokens, no snapshot before them"
            return self._begin_miss(request, self._target(None, targets), why)
        target, source = self._target(match, targets), match.source
        self._keep_old(target, match)
        if isinstance(source, int):
            if source != target:
                self._context.copy(source, target)
            where = "in place" if source == target else f"copied from slot {source}"
            return self._begin_hit(request, target, match, where)
        assert isinstance(source, ParkedEntry)
        try:
            self._context.restore(target, source.snapshot)
        except StateError as error:
            log.warning("cache: a parked sequence of %d tokens is dropped: %s", source.tokens.size, error)
            self._store.parked.remove(source)
            return self._begin_miss(request, target, "miss: a damaged snapshot")
        self._store.restored(source, whole=match.usable == source.points[-1])
        return self._begin_hit(request, target, match, "from memory")

    def _begin_hit(self, request: _Slot, target: int, match: Match, where: str) -> Placement:
        """Cut the target's sequence, which has the prefix, and note the request."""
        usable, end = match.usable, self._context.position(target)
        reached = self._context.truncate(target, usable)
        assert reached == usable, f"slot {target} was cut at {reached}, wanted {usable}"
        self._note(request, target, usable)
        self._hits += 1
        self._cached_tokens += usable
        self._store.adopt(target, usable)
        self._checkpoint_start(request, target, usable)
        self._store.write_behind()
        cut = "" if usable == end else f", cut at snapshot {usable} of {match.common} common tokens"
        reason = f"slot {target}: {usable} of {request.prompt.size} tokens {where}{cut}"
        return Placement(target, usable, reason)

    def _begin_miss(self, request: _Slot, target: int, why: str) -> Placement:
        self._keep_old(target, None)
        self._context.clear(target)
        self._note(request, target, 0)
        self._misses += 1
        self._store.write_behind()
        return Placement(target, 0, f"slot {target}: {why}")

    def _note(self, request: _Slot, target: int, n_cached: int) -> None:
        n_prompt, options = request.prompt.size, self._options
        request.n_cached, request.used = n_cached, self._store.tick()
        message_end = max((end for end in request.boundaries if end < n_prompt), default=n_prompt - 1)
        request.answer_from = max(message_end, n_cached)
        if self._store.checkpoint_bytes <= self._store.limit:
            request.stops = plan_stops(
                n_prompt, request.boundaries, n_cached, options.snapshot_min_step, options.snapshot_every
            )
        self._slots[target] = request

    def _checkpoint_start(self, request: _Slot, slot: int, position: int) -> None:
        """Keep the end of a sequence that goes on: behind an answer, who edits the next message comes back to
        it; behind all messages, every repeat does."""
        before = [point.position for point in self._context.checkpoints(slot)]
        far = position - newest_point(before, position) >= self._options.snapshot_min_step
        if position == request.answer_from or (position in request.boundaries and far):
            self._store.checkpoint(slot)

    def _keep_old(self, slot: int, match: Match | None) -> None:
        """Park what the slot holds, unless it goes on in the slot but for an answer, or is held elsewhere.

        What `match` is made from is not evicted for it.
        """
        in_place = match is not None and match.source == slot
        if match and in_place and not self._loses(slot, match.limit):
            return
        tokens = self._context.token_array(slot)
        if tokens.size and not self._store.is_covered(slot, tokens[: self._worth(slot)]):
            self._store.park(slot, match.usable if match and in_place else 0, match)


def _match(
    source: int | ParkedEntry | DiskEntry, tokens: TokenArray, points: Sequence[int], prompt: TokenArray
) -> Match:
    common = common_prefix(tokens, prompt)
    limit = min(common, prompt.size - 1)
    return Match(source, common, limit, newest_point(points, limit))
