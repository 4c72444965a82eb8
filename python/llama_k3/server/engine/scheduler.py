"""Scheduler: the slots of an engine, which tokens each micro-batch computes, and what follows from it.

Used on the engine's thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ...context import Context
from ...errors import LlamaK3Error, NonFiniteError
from .batch import MicroBatch, fair_shares
from .chain import Row
from .options import EngineOptions
from .prefix_cache import PrefixCache
from .queue import Job
from .request import Result, StopReason, Timings
from .slot import Slot

log = logging.getLogger("llama_k3.server")

# A checkpoint before the last token of a prompt spares a repeat of it the tokens behind the checkpoint
# before. It costs a micro-batch of its own, and so is left out where it spares no more than these.
_SHORT_TAIL = 64

_NOTHING = Timings(cache_n=0, prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)


@dataclass
class Sums:
    """Since the start: see EngineStats."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    decode_calls: int = 0
    busy_slots: int = 0
    n_tokens_max: int = 0


class _Part(NamedTuple):
    """What a slot has in a micro-batch. `row`: of the logits after the last token, None where none are
    wanted. `stop`: a checkpoint is due there."""

    slot: Slot
    n_tokens: int
    row: int | None
    stop: bool


def as_library_error(error: Exception, where: str) -> LlamaK3Error:
    """The error itself, or one that names it."""
    if isinstance(error, LlamaK3Error):
        return error
    return LlamaK3Error(f"{where}: {type(error).__name__}: {error}")


class Scheduler:
    """Runs jobs in the sequences of a context."""

    def __init__(
        self,
        context: Context,
        cache: PrefixCache,
        options: EngineOptions,
        wake: Callable[[], None],
        forget: Callable[[Job], None],
    ) -> None:
        """`wake` is called, from another thread, when a slot that waited can go on; `forget` when a job is
        over."""
        self._context = context
        self._cache = cache
        self._wake = wake
        self._forget = forget
        self._n_ubatch = options.n_ubatch
        self._batch = MicroBatch(options.n_ubatch, options.n_parallel, context.n_vocab)
        self.slots = [Slot(i, options.n_ctx, context.n_vocab) for i in range(options.n_parallel)]
        self.sums = Sums()
        self.cache_stats = cache.stats()

    @property
    def busy(self) -> bool:
        """Some slot has tokens to compute."""
        return any(slot.state in ("prompt", "generating") for slot in self.slots)

    def idle(self) -> set[int]:
        return {slot.id for slot in self.slots if slot.job is None}

    def refresh(self, number: int) -> None:
        """An idle slot holds something else now."""
        self.slots[number].n_past = self._context.position(number)
        self.cache_stats = self._cache.stats()

    # ---- requests begin and end ----

    def start(self, job: Job) -> None:
        """Put a job into the best idle slot (there is one)."""
        started = time.monotonic()
        request = job.request
        job.after = None  # it has done its work, and would keep a chain of jobs alive
        idle = self.idle()
        busy = [slot.id for slot in self.slots if slot.id not in idle]
        try:
            placement = self._cache.place(
                job.prompt, job.boundaries, idle, busy, request.cache_prompt, request.slot
            )
        except Exception as error:
            self.end_unplaced(job, "error", as_library_error(error, "prefix cache"))
            return
        slot = self.slots[placement.slot]
        slot.occupy(job, placement, started)
        if placement.pending is None:
            self._read(slot)
        else:
            log.info("%s", placement.reason)
            placement.pending.add_done_callback(lambda _: self._wake())

    def resume_waiting(self) -> None:
        """Let the slots go on whose cached sequence has come from disk."""
        for slot in self.slots:
            placement = slot.placement
            if slot.state == "waiting" and placement is not None and placement.pending is not None:
                if not placement.pending.done():
                    continue
                try:
                    slot.placement = self._cache.finish(placement)
                except Exception as error:
                    self.finish(slot, "error", as_library_error(error, "prefix cache"), failed=True)
                else:
                    self._read(slot)

    def _read(self, slot: Slot) -> None:
        placement = slot.placement
        assert placement is not None
        slot.read(placement)
        self.cache_stats = self._cache.stats()
        log.info("%s; cache_n %d", placement.reason, slot.n_cached)
        try:
            slot.report_progress()
        except Exception as error:
            self.finish(slot, "error", as_library_error(error, "sink"))

    def finish(
        self, slot: Slot, reason: StopReason, error: LlamaK3Error | None = None, failed: bool = False
    ) -> None:
        """End the request of a slot. `failed`: what the sequence holds is not to be used again."""
        if slot.state == "prompt":
            self._count_prompt(slot)
        result = slot.result(reason, error)
        timings = result.timings
        self.sums.predicted_tokens += timings.predicted_n
        self.sums.predicted_seconds += timings.predicted_ms * 1e-3
        self.sums.n_tokens_max = max(self.sums.n_tokens_max, slot.n_past)
        self._let_go(slot, failed)
        log.info(
            "slot %d: %s; prompt %d tokens in %.2f ms (cache_n %d), answer %d tokens in %.2f ms%s",
            *(slot.id, reason, timings.prompt_n, timings.prompt_ms, timings.cache_n),
            *(timings.predicted_n, timings.predicted_ms, "" if error is None else f": {error}"),
        )
        self._tell_end(slot.leave(self._context.position(slot.id)), result)

    def _let_go(self, slot: Slot, failed: bool) -> None:
        placement = slot.placement
        assert placement is not None
        try:
            if slot.state == "waiting" and placement.pending is not None and not failed:
                self._cache.abandon(placement)
            elif failed:
                self._cache.failed(slot.id)
            else:
                self._cache.release(slot.id)
        except Exception:
            log.exception("slot %d: the prefix cache failed", slot.id)
        self.cache_stats = self._cache.stats()

    def end_unplaced(self, job: Job, reason: StopReason, error: LlamaK3Error | None = None) -> None:
        """End a request that is in no slot."""
        log.info("request without slot: %s%s", reason, "" if error is None else f": {error}")
        self._tell_end(job, Result(reason, -1, len(job.prompt), 0, _NOTHING, error))

    def _tell_end(self, job: Job, result: Result) -> None:
        job.over = True
        self._forget(job)
        try:
            job.request.sink.on_end(result)
        except Exception:
            log.exception("slot %d: the sink failed at the end of its request", result.slot)

    def end_due(self, now: float) -> None:
        """End the requests in slots that were cancelled or whose deadline has come."""
        for slot in self.slots:
            job = slot.job
            if job is None:
                continue
            if job.cancelled:
                self.finish(slot, "cancelled")
            elif job.request.deadline is not None and now >= job.request.deadline:
                self.finish(slot, "deadline")

    def end_all(self, reason: StopReason, error: LlamaK3Error | None = None) -> None:
        """End the requests in all slots."""
        for slot in self.slots:
            if slot.job is not None:
                self.finish(slot, reason, error, failed=error is not None)

    # ---- one micro-batch ----

    def step(self) -> None:
        """Compute one micro-batch and let each of its slots go on."""
        parts = self._fill()
        self.sums.decode_calls += 1
        self.sums.busy_slots += len(parts)
        try:
            self._batch.decode(self._context)
        except NonFiniteError as error:
            parts = self._end_cleared(parts, error)
        except Exception as error:
            for part in parts:
                self.finish(part.slot, "error", as_library_error(error, "decode"), failed=True)
            return
        for part in parts:
            self._advance(part)

    def _end_cleared(self, parts: list[_Part], error: NonFiniteError) -> list[_Part]:
        """End the requests whose logits are not finite, which the library cleared; the others, which it
        computed."""
        for part in parts:
            if part.slot.id in error.sequences:
                end = part.slot.n_past + part.n_tokens
                own = NonFiniteError(f"slot {part.slot.id}: the logits behind token {end} are not finite")
                self.finish(part.slot, "error", own, failed=True)
        return [part for part in parts if part.slot.job is not None]

    def _fill(self) -> list[_Part]:
        """One token of every slot (of those served longest ago where n_ubatch is small), streams before
        prompts; the rest of the batch is shared equally by what has more to compute."""
        running = [slot for slot in self.slots if slot.state in ("prompt", "generating")]
        running.sort(key=lambda slot: (slot.served, slot.state == "prompt"))
        running = running[: self._n_ubatch]
        limits = [
            slot.n_pending if slot.state == "generating" else self._prompt_limit(slot) for slot in running
        ]
        shares = fair_shares([limit - 1 for limit in limits], self._n_ubatch - len(running))
        self._batch.clear()
        parts = []
        for slot, limit, share in zip(running, limits, shares, strict=True):
            n = share + 1
            end = slot.n_past + n
            want = end == len(slot.tokens) and slot.running.request.max_tokens != 0
            stop = n == limit and end < slot.n_prompt
            row = self._batch.n_rows if want else None
            self._batch.add(slot.id, slot.tokens[slot.n_past : end], want)
            slot.served = self.sums.decode_calls + 1
            parts.append(_Part(slot, n, row, stop))
        return parts

    def _prompt_limit(self, slot: Slot) -> int:
        """Tokens up to the next checkpoint, or the prompt's end."""
        stop = self._cache.next_stop(slot.id, slot.n_past)
        if stop == slot.n_prompt - 1 and slot.checkpoint and slot.n_prompt - slot.checkpoint <= _SHORT_TAIL:
            stop = slot.n_prompt
        return stop - slot.n_past

    def _advance(self, part: _Part) -> None:
        """A slot after its part of a micro-batch."""
        slot = part.slot
        slot.n_past += part.n_tokens
        try:
            if part.stop:
                self._cache.checkpoint(slot.id)
                slot.checkpoint = slot.n_past
            if slot.state == "prompt":
                slot.report_progress()
            reason = self._go_on(slot, None if part.row is None else self._batch.row(part.row))
        except NonFiniteError as error:
            self.finish(slot, "error", error, failed=True)
        except Exception as error:
            self.finish(slot, "error", as_library_error(error, "request"))
        else:
            if reason is not None:
                self.finish(slot, reason)

    def _go_on(self, slot: Slot, row: Row | None) -> StopReason | None:
        """Take the next token where there are logits; the reason where the request ends."""
        if slot.state == "prompt" and slot.n_past == slot.n_prompt:
            self._count_prompt(slot)
            slot.running.prompt_read = True
            slot.state = "generating"
        if row is not None:
            return slot.continue_from(row)
        return "limit" if slot.n_past == len(slot.tokens) else None

    def _count_prompt(self, slot: Slot) -> None:
        timings = slot.timings()
        self.sums.prompt_tokens += timings.prompt_n
        self.sums.prompt_seconds += timings.prompt_ms * 1e-3
