"""The hybrid prefix cache: which slot a prompt goes to, what it finds there, and what is kept for later.

Used on the engine's thread only, between two decode calls. What a slot holds is read from the
context, never remembered here, so that tokens and state cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...context import Context, Snapshot
from .options import EngineOptions


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
    pending: Future[Any] | None = None


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
        raise NotImplementedError

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
        raise NotImplementedError

    def finish(self, placement: Placement) -> Placement:
        """Put what `pending` read into its slot. A file that could not be read makes a shorter hit or a miss."""
        raise NotImplementedError

    def abandon(self, placement: Placement) -> None:
        """The request of a placement with `pending` is gone: its slot is as it was before `place`."""
        raise NotImplementedError

    def next_stop(self, slot: int, position: int) -> int:
        """The next position behind `position` at which the prompt of the slot is to be cut for a
        checkpoint; the prompt's length when there is none."""
        raise NotImplementedError

    def checkpoint(self, slot: int) -> None:
        """Keep the slot's present state, if it fits the budget. To be called at each `next_stop` but the
        prompt's length (there it does no harm)."""
        raise NotImplementedError

    def release(self, slot: int) -> None:
        """The slot's request is over; its sequence stays for the next one."""
        raise NotImplementedError

    def failed(self, slot: int) -> None:
        """The slot's logits were not finite: clear it, and drop everything that its prompt was reused from
        or could be reused from again. Ends the request as `release` does."""
        raise NotImplementedError

    def save(self, slot: int) -> Snapshot:
        """The slot's sequence with its checkpoints; `bytes(snapshot.data())` is the format of Context.save."""
        raise NotImplementedError

    def load(self, slot: int, snapshot: Snapshot) -> int:
        """Put a saved sequence into an idle slot, whose old one is parked; tokens restored. StateError and
        ContextFullError: the block does not fit, and the slot is as it was."""
        raise NotImplementedError

    def erase(self, slot: int) -> int:
        """Clear an idle slot, and drop the parked sequences that continue it or that it continues; the
        number of tokens dropped from the slot."""
        raise NotImplementedError

    def stats(self) -> CacheStats:
        raise NotImplementedError

    def close(self) -> None:
        """End the threads of the second tier, after writing to it what is parked and what slots hold."""
        raise NotImplementedError
