"""What goes into the engine and what comes out of it: requests, sampling, sinks, results, timings.

A request is a list of tokens to continue in some slot. Its sink is told every token on the engine's
thread, in order, and answers what to do next; so stop strings, parsing and limits of the chat are
the sink's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import LlamaK3Error

StopReason = Literal["eos", "limit", "word", "deadline", "cancelled", "error"]
"""eos: a token of `end_ids`. limit: `max_tokens`, or the slot's context is full. word: the sink
stopped it."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, in this order: logit_bias, penalties over the last `repeat_last_n`
    tokens (-1: all of the slot's), grammar, top-k, top-p, min-p, temperature, draw. Names and
    meaning are llama.cpp's.

    temperature 0: the largest logit, ties to the lower id. top_k <= 0, top_p >= 1, min_p 0,
    repeat_penalty 1, presence_penalty 0, frequency_penalty 0: no such step. `logit_bias` -inf bans a
    token. `seed` None draws one.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


class Constraint(Protocol):
    """A grammar at one point of its text; belongs to one request."""

    def mask(self, logits: npt.NDArray[np.float32]) -> None:
        """Make the tokens that the grammar does not allow next undrawable, in place; logits [n_vocab]."""

    def accept(self, token: int) -> None:
        """Go on behind `token`. ArgumentError: the grammar does not allow it."""


@dataclass(frozen=True)
class TokenProbs:
    """Log probabilities at one position. `logprob`: of the token taken. `top`: the likeliest (id,
    log prob.), best first. All are finite, of the softmax of the model's own logits (before any
    step of Sampling)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Action:
    """What the sink wants next. `stop`: end with reason "word". `force`: append these tokens in
    place of drawn ones, each of which is told to the sink as well."""

    stop: bool = False
    force: Sequence[int] = ()


CONTINUE = Action()


@dataclass(frozen=True)
class Progress:
    """Of reading a prompt: `total` tokens, of which `cache` were reused and `processed` (cache included)
    are done."""

    total: int
    cache: int
    processed: int
    time_ms: float


@dataclass(frozen=True)
class Timings:
    """llama.cpp's timings. `cache_n`: prompt tokens reused. `prompt_n`: prompt tokens computed.
    `prompt_ms`: from the start in a slot to the first drawn token. `predicted_ms`: from there to the
    last token."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float

    def to_json(self) -> dict[str, float]:
        """The object `timings` of llama.cpp's responses; never a division by zero."""
        return {
            "cache_n": self.cache_n,
            **_rates("prompt", self.prompt_n, self.prompt_ms),
            **_rates("predicted", self.predicted_n, self.predicted_ms),
        }


def _rates(name: str, n: int, ms: float) -> dict[str, float]:
    return {
        f"{name}_n": n,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / n if n else 0.0,
        f"{name}_per_second": 1e3 * n / ms if ms > 0 else 0.0,
    }


@dataclass(frozen=True)
class Result:
    """The end of a request. `n_prompt`: all tokens of the prompt. `error` where reason is "error"."""

    reason: StopReason
    slot: int
    n_prompt: int
    n_predicted: int
    timings: Timings
    error: LlamaK3Error | None = None


class Sink(Protocol):
    """Hears of one request, on the engine's thread: must return at once and never raise."""

    def on_token(self, token: int, probs: TokenProbs | None) -> Action:
        """A token was appended (end tokens too, before `on_end`). `probs`: None where `n_probs` is."""

    def on_progress(self, progress: Progress) -> None:
        """Called before the first micro-batch of the prompt and after each one."""

    def on_end(self, result: Result) -> None:
        """The request is over; nothing follows. Called exactly once for each submitted request."""


@dataclass
class Request:
    """`prompt`: token ids, at least one, fewer than the slot's context. `max_tokens`: -1 no limit but the
    context. `boundaries`: positions in the prompt behind whole messages, ascending: where snapshots
    pay. `n_probs`: how many likeliest tokens to report with each token; None: no probabilities.
    `cache_prompt`: reuse of earlier sequences allowed. `slot`: a wanted slot; None: the best.
    `max_predict_ms`: time limit of the answer after its first token. `deadline`: time.monotonic() at
    which the request ends wherever it is. `end_ids`: tokens at which the answer ends. `banned`: tokens
    that are never drawn. `after`: a request whose prompt this one shares; it starts once that one's
    prompt is read (or that one is over)."""

    prompt: Sequence[int]
    sink: Sink
    sampling: Sampling = Sampling()
    max_tokens: int = -1
    boundaries: Sequence[int] = ()
    constraint: Constraint | None = None
    n_probs: int | None = None
    cache_prompt: bool = True
    slot: int | None = None
    max_predict_ms: float | None = None
    deadline: float | None = None
    end_ids: frozenset[int] = frozenset()
    banned: frozenset[int] = frozenset()
    after: Request | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """Shown with the slot: model, parameters."""
