"""What an answer tells while it is made: the events of a Run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..xtml import Delta, Message
from .engine.request import Progress, Result, Timings, TokenProbs

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer (for a TextTask kind "content"), and the tokens that were taken since
    the last one.

    `tokens` may come without text (delta None): of a control token. `timings`: up to here, where they
    were asked for.
    """

    delta: Delta | None
    tokens: tuple[int, ...] = ()
    probs: tuple[TokenProbs, ...] = ()
    timings: Timings | None = None


@dataclass(frozen=True)
class Finished:
    """The end. `message`: the whole answer. `stop_type`: llama.cpp's none, eos, limit or word;
    `stopping_word`.

    `n_reasoning`: tokens of the think channel.
    """

    reason: FinishReason
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    message: Message
    n_reasoning: int
    result: Result


Event = TextDelta | Progress | Finished
