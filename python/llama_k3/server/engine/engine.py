"""Engine: the thread that owns the context, its queue of requests and its slots."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from ...context import Context
from ...errors import LlamaK3Error
from ...model import Model
from .options import EngineOptions
from .request import Request

_T = TypeVar("_T")


class QueueFullError(LlamaK3Error):
    """As many requests wait as may."""


@dataclass(frozen=True)
class SlotState:
    """One slot as `/slots` shows it. `state`: idle, waiting (for a cached sequence from disk), prompt,
    generating."""

    id: int
    state: str
    n_ctx: int
    n_past: int
    n_prompt: int
    n_cached: int
    n_predicted: int
    request: Request | None


@dataclass(frozen=True)
class EngineStats:
    """Sums since the start, for /metrics; times in seconds, sizes in bytes."""

    prompt_tokens: int
    prompt_seconds: float
    predicted_tokens: int
    predicted_seconds: float
    decode_calls: int
    busy_slots: int  # summed over the decode calls
    requests_processing: int
    requests_deferred: int
    n_tokens_max: int  # most tokens a slot has held
    cache_hits: int  # requests that reused something
    cache_misses: int
    cached_tokens: int  # prompt tokens reused
    cache_ram_bytes: int
    cache_ram_limit: int
    cache_disk_bytes: int
    cache_entries: int


class Engine:
    """Runs requests of one model. All methods may be called from any thread; sinks run on the
    engine's own."""

    def __init__(self, model: Model, options: EngineOptions) -> None:
        """Allocates the context and starts the thread."""
        raise NotImplementedError

    def submit(self, request: Request) -> None:
        """Queue a request. ArgumentError: prompt empty or as long as n_ctx, unknown slot. QueueFullError."""
        raise NotImplementedError

    def cancel(self, request: Request) -> None:
        """End a request (queued or running) within one micro-batch; no effect on one that is over."""
        raise NotImplementedError

    def call(self, function: Callable[[Context], _T]) -> Future[_T]:
        """Run `function` on the engine's thread between two micro-batches."""
        raise NotImplementedError

    def save_slot(self, slot: int) -> Future[bytes]:
        """The slot's sequence with its snapshots as one block (format of Context.save). Fails on a busy slot."""
        raise NotImplementedError

    def restore_slot(self, slot: int, block: bytes) -> Future[int]:
        """Put such a block into an idle slot; tokens restored. StateError: the block does not fit."""
        raise NotImplementedError

    def erase_slot(self, slot: int) -> Future[int]:
        """Clear an idle slot and what is parked of it; tokens dropped."""
        raise NotImplementedError

    def slots(self) -> list[SlotState]:
        raise NotImplementedError

    def queue_position(self, request: Request) -> int | None:
        """0 for the next one to start; None when it is not waiting."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        raise NotImplementedError

    def close(self) -> None:
        """End all requests (reason cancelled) and the thread; free the context. A second call does nothing."""
        raise NotImplementedError
