"""A sink that records what it hears, and what the tests of the engine share around it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_k3.server.engine.engine import Engine
from llama_k3.server.engine.request import (
    CONTINUE,
    Action,
    Progress,
    Request,
    Result,
    Sampling,
    TokenProbs,
)

from llama_k3 import Model

GREEDY = Sampling(temperature=0.0)
PATIENCE = 60.0  # seconds; a test that waits so long has failed


class Recorder:
    """`react`: called with each token's number, counted from 1, for the Action."""

    def __init__(self, react: Callable[[int], Action | None] | None = None) -> None:
        self.tokens: list[int] = []
        self.probs: list[TokenProbs | None] = []
        self.progress: list[Progress] = []
        self.ends: list[Result] = []
        self.first_token = threading.Event()
        self._react = react
        self._over = threading.Event()

    def on_token(self, token: int, probs: TokenProbs | None) -> Action:
        assert not self.ends
        self.tokens.append(token)
        self.probs.append(probs)
        self.first_token.set()
        return (self._react(len(self.tokens)) if self._react else None) or CONTINUE

    def on_progress(self, progress: Progress) -> None:
        assert not self.ends and not self.tokens
        self.progress.append(progress)

    def on_end(self, result: Result) -> None:
        self.ends.append(result)
        self._over.set()

    def wait(self) -> Result:
        """The result, once it is there."""
        assert self._over.wait(PATIENCE), "no end within a minute"
        return self.ends[0]

    @property
    def over(self) -> bool:
        return self._over.is_set()


def start(
    engine: Engine, prompt: Sequence[int], react: Callable[[int], Action | None] | None = None, **options: Any
) -> tuple[Request, Recorder]:
    """Submit a request, greedy where nothing else is said."""
    sink = Recorder(react)
    request = Request(prompt=prompt, sink=sink, **{"sampling": GREEDY, "max_tokens": 8, **options})
    engine.submit(request)
    return request, sink


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """The engine's thread stands between two micro-batches until the body is done."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        inside.set()
        assert go_on.wait(PATIENCE)

    future = engine.call(hold)
    assert inside.wait(PATIENCE)
    try:
        yield
    finally:
        go_on.set()
        future.result(PATIENCE)


def settle(engine: Engine) -> None:
    """Return once the engine has done what was asked of it before."""
    engine.call(lambda _: None).result(PATIENCE)


def greedy_answer(model: Model, prompt: Sequence[int], n: int) -> list[int]:
    """n tokens after the prompt, by a context without an engine."""
    with model.context(n_ctx=len(prompt) + n) as context:
        pending = list(prompt)
        answer: list[int] = []
        while len(answer) < n:
            pending = [int(context.decode(pending)[0].argmax())]
            answer += pending
        return answer
