"""Slot: one sequence of the context, and the request that runs in it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from ...arguments import integer
from ...errors import LlamaK3Error
from .chain import Row, token_probs
from .prefix_cache import Placement
from .queue import Job
from .request import Progress, Request, Result, StopReason, Timings, TokenProbs

State = Literal["idle", "waiting", "prompt", "generating"]


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


class Slot:
    """Belongs to the engine's thread. `tokens`: prompt and answer, of which the sequence holds the first
    `n_past`. `checkpoint`: position of the last one made in the prompt, 0 for none. `placement`: see
    PrefixCache."""

    def __init__(self, number: int, n_ctx: int, n_vocab: int) -> None:
        self.id = number
        self.n_ctx = n_ctx
        self._n_vocab = n_vocab
        self.job: Job | None = None
        self.placement: Placement | None = None
        self.state: State = "idle"
        self.served = 0  # number of the last micro-batch that it was in
        self._reset(0, 0)

    def _reset(self, n_past: int, n_prompt: int) -> None:
        self.tokens: list[int] = []
        self.n_past = n_past
        self.n_prompt = n_prompt
        self.n_cached = 0
        self.checkpoint = 0
        self.n_predicted = 0
        self._forced: deque[int] = deque()
        self._started = self._first_token = self._last_token = 0.0

    def occupy(self, job: Job, placement: Placement, started: float) -> None:
        """The job is in the slot from now on (`started`: monotonic), and waits until it can `read`."""
        self._reset(0, len(job.prompt))
        self.job = job
        self.placement = placement
        self.state = "waiting"
        self._started = started

    def read(self, placement: Placement) -> None:
        """Begin with the prompt's tokens behind those that the placement found."""
        self.placement = placement
        self.tokens = self.running.prompt.copy()
        self.n_past = self.n_cached = placement.n_cached
        self.state = "prompt"

    def leave(self, n_past: int) -> Job:
        """The request is over; the sequence holds n_past tokens."""
        job = self.running
        self._reset(n_past, 0)
        self.job = self.placement = None
        self.state = "idle"
        return job

    @property
    def running(self) -> Job:
        """The job, where there is one."""
        assert self.job is not None
        return self.job

    @property
    def n_pending(self) -> int:
        """Tokens that are to be computed."""
        return len(self.tokens) - self.n_past

    def report_progress(self) -> None:
        elapsed = (time.monotonic() - self._started) * 1e3
        self.running.request.sink.on_progress(Progress(self.n_prompt, self.n_cached, self.n_past, elapsed))

    def continue_from(self, row: Row) -> StopReason | None:
        """Append the next token, drawn from the logits [n_vocab] behind the last one, and those that the
        sink forces after it. The reason where the answer ends there."""
        request = self.running.request
        token, probs = self._choose(row)
        reason = self._append(token, probs)
        # With probabilities every forced token needs the logits before it.
        while reason is None and self._forced and request.n_probs is None:
            reason = self._append(self._forced.popleft(), None)
        return reason

    def _choose(self, row: Row) -> tuple[int, TokenProbs | None]:
        job = self.running
        n_probs = job.request.n_probs
        if n_probs is None:
            return job.chain.sample(row), None
        if self._forced:
            token = self._forced.popleft()
        else:
            token = job.chain.sample(row.copy() if job.chain.changes_row else row)
        return token, token_probs(row, token, n_probs)

    def _append(self, token: int, probs: TokenProbs | None) -> StopReason | None:
        job = self.running
        request = job.request
        job.chain.accept(token)
        self.tokens.append(token)
        self.n_predicted += 1
        self._last_token = time.monotonic()
        if self.n_predicted == 1:
            self._first_token = self._last_token
        action = request.sink.on_token(token, probs)
        if token in request.end_ids:
            return "eos"
        if action.stop:
            return "word"
        if self.n_predicted == request.max_tokens or len(self.tokens) == self.n_ctx:
            return "limit"
        limit = request.max_predict_ms
        if limit is not None and (self._last_token - self._first_token) * 1e3 >= limit:
            return "limit"
        if action.force:
            self._forced.extend(integer("forced token", t, 0, self._n_vocab - 1) for t in action.force)
        return None

    def result(self, reason: StopReason, error: LlamaK3Error | None) -> Result:
        return Result(reason, self.id, len(self.running.prompt), self.n_predicted, self.timings(), error)

    def timings(self) -> Timings:
        """Up to now."""
        first = self._first_token if self.n_predicted else time.monotonic()
        return Timings(
            cache_n=self.n_cached,
            prompt_n=min(self.n_past, self.n_prompt) - self.n_cached,
            prompt_ms=(first - self._started) * 1e3,
            predicted_n=self.n_predicted,
            predicted_ms=(self._last_token - self._first_token) * 1e3,
        )

    def snapshot(self) -> SlotState:
        """What other threads may see; each number is right, if not all of the same moment."""
        job = self.job
        return SlotState(
            self.id,
            self.state,
            self.n_ctx,
            self.n_past,
            self.n_prompt,
            self.n_cached,
            self.n_predicted,
            None if job is None else job.request,
        )
