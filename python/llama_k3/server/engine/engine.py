"""Engine: the thread that owns the context, its queue of requests and its slots."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from ...arguments import integer
from ...context import Context, Snapshot
from ...errors import ArgumentError, ClosedError
from ...model import Model
from .options import EngineOptions
from .prefix_cache import PrefixCache
from .queue import Job, QueueFullError, RequestQueue
from .request import Request
from .scheduler import Scheduler, as_library_error
from .slot import SlotState

__all__ = ["Engine", "EngineStats", "QueueFullError", "SlotState"]

_T = TypeVar("_T")

log = logging.getLogger("llama_k3.server")


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
        """Allocates the context and starts the thread. ArgumentError, OutOfMemoryError, StateOpenError."""
        self._n_vocab = model.n_vocab
        self._options = options
        integer("max_queue", options.max_queue, 0, 2**31 - 1)
        self._context = model.context(
            n_ctx=options.n_ctx,
            n_seq_max=options.n_parallel,
            kv_type=options.kv_type,
            n_ubatch=options.n_ubatch,
            snapshot_every=0,
            snapshot_bytes=2**64 - 1,
        )
        try:
            self._cache = PrefixCache(self._context, options, model.info.digest)
        except BaseException:
            self._context.close()
            raise
        self._scheduler = Scheduler(self._context, self._cache, options, self._resume, self._forget)
        # Guards what follows; `_wake` tells the engine's thread that something of it has changed.
        self._wake = threading.Condition()
        self._queue = RequestQueue(options.max_queue)
        self._jobs: dict[int, Job] = {}  # all that are not over, by id of their request
        self._calls: deque[tuple[Callable[[Context], Any], Future[Any]]] = deque()
        self._closing = False
        self._resumed = False
        self._thread = threading.Thread(target=self._run, name="llama-k3 engine", daemon=True)
        self._thread.start()

    # ---- for other threads ----

    def submit(self, request: Request) -> None:
        """Queue a request. ArgumentError: prompt empty or as long as n_ctx, unknown slot, a parameter out
        of its range. QueueFullError. ClosedError."""
        after = None if request.after is None else self._jobs.get(id(request.after))
        job = Job(request, self._options, self._n_vocab, after)
        with self._wake:
            if self._closing:
                raise ClosedError("the engine is closed")
            if id(request) in self._jobs:
                raise ArgumentError("request: found one that is not over yet, wanted a new one")
            self._queue.put(job, len(self._scheduler.idle()))
            self._jobs[id(request)] = job
            self._wake.notify()

    def cancel(self, request: Request) -> None:
        """End a request (queued or running) within one micro-batch; no effect on one that is over."""
        with self._wake:
            job = self._jobs.get(id(request))
            if job is not None:
                job.cancelled = True
                self._wake.notify()

    def call(self, function: Callable[[Context], _T]) -> Future[_T]:
        """Run `function` on the engine's thread between two micro-batches. ClosedError."""
        future: Future[_T] = Future()
        with self._wake:
            if self._closing:
                raise ClosedError("the engine is closed")
            self._calls.append((function, future))
            self._wake.notify()
        return future

    def save_slot(self, slot: int) -> Future[bytes]:
        """The slot's sequence with its snapshots as one block (format of Context.save). ArgumentError: the
        slot is busy."""
        return self.call(lambda _: bytes(self._cache.save(self._idle_slot(slot)).data()))

    def restore_slot(self, slot: int, block: bytes) -> Future[int]:
        """Put such a block into an idle slot; tokens restored. StateError: the block does not fit."""
        snapshot = Snapshot.from_bytes(block)
        return self._changing(slot, lambda _: self._cache.load(self._idle_slot(slot), snapshot))

    def erase_slot(self, slot: int) -> Future[int]:
        """Clear an idle slot and what is parked of it; tokens dropped."""
        return self._changing(slot, lambda _: self._cache.erase(self._idle_slot(slot)))

    def slots(self) -> list[SlotState]:
        with self._wake:
            return [slot.snapshot() for slot in self._scheduler.slots]

    def queue_position(self, request: Request) -> int | None:
        """0 for the next one to start; None when it is not waiting."""
        with self._wake:
            return self._queue.position(request)

    def stats(self) -> EngineStats:
        sums, cache = self._scheduler.sums, self._scheduler.cache_stats
        with self._wake:
            deferred = len(self._queue)
        return EngineStats(
            prompt_tokens=sums.prompt_tokens,
            prompt_seconds=sums.prompt_seconds,
            predicted_tokens=sums.predicted_tokens,
            predicted_seconds=sums.predicted_seconds,
            decode_calls=sums.decode_calls,
            busy_slots=sums.busy_slots,
            requests_processing=self._options.n_parallel - len(self._scheduler.idle()),
            requests_deferred=deferred,
            n_tokens_max=sums.n_tokens_max,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            cached_tokens=cache.cached_tokens,
            cache_ram_bytes=cache.ram_bytes,
            cache_ram_limit=cache.ram_limit,
            cache_disk_bytes=cache.disk_bytes,
            cache_entries=cache.entries,
        )

    def close(self) -> None:
        """End all requests (reason cancelled) and the thread; free the context. A second call does nothing.

        From a sink: the thread ends behind it.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- on the engine's thread ----

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception as error:
                # Not expected of any request: none of those that run can be trusted to go on.
                log.exception("engine: a turn of its loop failed")
                self._scheduler.end_all("error", as_library_error(error, "engine"))
        self._end()

    def _turn(self) -> None:
        """What came in since the last micro-batch, then the next one, or a wait for something to do."""
        if self._calls:
            self._run_calls()
        now = time.monotonic()
        self._scheduler.end_due(now)
        if self._resumed:
            self._resumed = False
            self._scheduler.resume_waiting()
        if self._queue:
            self._end_due_in_queue(now)
            self._admit()
        if self._scheduler.busy:
            self._scheduler.step()
        else:
            with self._wake:
                self._wake.wait_for(self._something_to_do, self._seconds_to_deadline(now))

    def _something_to_do(self) -> bool:
        jobs = self._jobs.values()
        idle = self._scheduler.idle()
        return bool(
            self._closing
            or self._calls
            or self._resumed
            or any(job.cancelled for job in jobs)
            or self._queue.startable(idle) is not None
        )

    def _seconds_to_deadline(self, now: float) -> float | None:
        """Until the first deadline of all requests, while none is computing; None: there is none."""
        deadlines = [job.request.deadline for job in self._jobs.values() if job.request.deadline is not None]
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _run_calls(self) -> None:
        while self._calls:
            function, future = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self._context))
                except BaseException as error:
                    future.set_exception(error)

    def _end_due_in_queue(self, now: float) -> None:
        def is_due(job: Job) -> bool:
            deadline = job.request.deadline
            return job.cancelled or (deadline is not None and now >= deadline)

        with self._wake:
            due = self._queue.take_where(is_due)
        for job in due:
            self._scheduler.end_unplaced(job, "cancelled" if job.cancelled else "deadline")

    def _admit(self) -> None:
        while idle := self._scheduler.idle():
            with self._wake:
                job = self._queue.startable(idle)
                if job is None:
                    return
                self._queue.remove(job)
            self._scheduler.start(job)

    def _end(self) -> None:
        """Every request hears of its end, every call gets its answer; then the memory is freed."""
        self._scheduler.end_all("cancelled")
        with self._wake:
            waiting = self._queue.take_where(lambda _: True)
        for job in waiting:
            self._scheduler.end_unplaced(job, "cancelled")
        while self._calls:
            _, future = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(ClosedError("the engine is closed"))
        try:
            self._cache.close()
        except Exception:
            log.exception("engine: the prefix cache failed at its end")
        self._context.close()

    def _resume(self) -> None:
        with self._wake:
            self._resumed = True
            self._wake.notify()

    def _forget(self, job: Job) -> None:
        with self._wake:
            self._jobs.pop(id(job.request), None)

    def _idle_slot(self, slot: int) -> int:
        """The slot's number. ArgumentError: there is no such slot, or it is busy."""
        number = integer("slot", slot, 0, self._options.n_parallel - 1)
        if self._scheduler.slots[number].job is not None:
            raise ArgumentError(f"slot {number}: found a request in it, wanted an idle slot")
        return number

    def _changing(self, slot: int, function: Callable[[Context], int]) -> Future[int]:
        """`call` of a function that changes what an idle slot holds."""

        def change(context: Context) -> int:
            n = function(context)
            self._scheduler.refresh(slot)
            return n

        return self.call(change)
