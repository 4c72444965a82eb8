"""RequestQueue: the requests that wait for a slot, first come first served."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ...arguments import integer, integers
from ...errors import ArgumentError, LlamaK3Error
from .chain import SamplerChain
from .options import EngineOptions
from .request import Request


class QueueFullError(LlamaK3Error):
    """As many requests wait as may."""


class Job:
    """A submitted request, checked, with what the engine adds to it."""

    def __init__(self, request: Request, options: EngineOptions, n_vocab: int, after: Job | None) -> None:
        """`after`: of `request.after`, None where that is over. ArgumentError names what is wrong."""
        self.request = request
        self.prompt = _prompt(request, options.n_ctx, n_vocab)
        self.boundaries = _boundaries(request, len(self.prompt))
        if request.slot is not None:
            integer("slot", request.slot, 0, options.n_parallel - 1)
        integer("max_tokens", request.max_tokens, -1, 2**63 - 1)
        if request.n_probs is not None:
            integer("n_probs", request.n_probs, 0, 2**63 - 1)
        _time("max_predict_ms", request.max_predict_ms)
        _time("deadline", request.deadline)
        self.chain = SamplerChain(n_vocab, request.sampling, request.banned, request.constraint)
        self.chain.accept_prompt(self.prompt)
        self.after = after
        self.prompt_read = False
        self.over = False
        self.cancelled = False

    @property
    def ready(self) -> bool:
        """The request that it comes after has read its prompt, or is over."""
        return self.after is None or self.after.prompt_read or self.after.over


def _prompt(request: Request, n_ctx: int, n_vocab: int) -> list[int]:
    tokens: list[int] = integers("prompt", request.prompt, 0, n_vocab - 1).tolist()
    if not 1 <= len(tokens) < n_ctx:
        raise ArgumentError(f"prompt: found {len(tokens)} tokens, wanted 1 .. {n_ctx - 1}")
    return tokens


def _boundaries(request: Request, n_prompt: int) -> list[int]:
    positions: list[int] = integers("boundaries", request.boundaries, 1, n_prompt).tolist()
    if any(b <= a for a, b in zip(positions, positions[1:], strict=False)):
        raise ArgumentError(f"boundaries: found {positions}, wanted ascending positions")
    return positions


def _time(name: str, value: Any) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value)
    ):
        raise ArgumentError(f"{name}: found {value!r}, wanted a number or None")


class RequestQueue:
    """Jobs in the order in which they came. Not locked: the engine does that."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def put(self, job: Job, n_idle: int) -> None:
        """Append; as many as there are idle slots do not count as waiting. QueueFullError."""
        if len(self._jobs) >= self._max_waiting + n_idle:
            raise QueueFullError(
                f"queue: found {len(self._jobs)} requests waiting, wanted fewer than {self._max_waiting}"
            )
        self._jobs.append(job)

    def position(self, request: Request) -> int | None:
        """Place of a request, 0 for the first one; None when it is not here."""
        return next((i for i, job in enumerate(self._jobs) if job.request is request), None)

    def startable(self, idle: Collection[int]) -> Job | None:
        """The first job that may start now. One that waits for its slot or for another request does not
        block those behind it."""
        if not idle:
            return None
        slots = (None, *idle)
        return next((job for job in self._jobs if job.ready and job.request.slot in slots), None)

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)

    def take_where(self, condition: Callable[[Job], bool]) -> list[Job]:
        """Remove all jobs that fulfil the condition."""
        taken = [job for job in self._jobs if condition(job)]
        if taken:
            self._jobs = [job for job in self._jobs if job not in taken]
        return taken
