"""Tasks and answers without a wire format: what the OpenAI, Anthropic and llama.cpp endpoints share.

An endpoint turns its request into a ChatTask or TextTask, starts it, and turns the events of the
Run into its own JSON. Rendering, tokenising, grammars, parsing and stop strings happen here, once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..xtml import Delta, Message
from .engine.engine import Engine
from .engine.request import Progress, Result, Sampling, TokenProbs

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class AnswerOptions:
    """What both kinds of tasks have. `stop`: the content (for a TextTask: the text) ends before the first
    of them."""

    sampling: Sampling = Sampling()
    max_tokens: int = -1
    stop: Sequence[str] = ()
    n_probs: int | None = None
    cache_prompt: bool = True
    slot: int | None = None
    max_predict_ms: float | None = None
    ignore_eos: bool = False


@dataclass(frozen=True)
class ChatTask:
    """A chat to answer. `messages`, `tools`, `tool_choice`, `response_format`: OpenAI's chat
    completion forms.

    `thinking_budget`: most tokens of reasoning, after which the think channel is closed; -1: no limit.
    `parallel_tool_calls` False: at most one call.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    response_format: Mapping[str, Any] | None = None
    thinking: bool = True
    effort: str | None = None
    thinking_budget: int = -1
    parallel_tool_calls: bool = True
    options: AnswerOptions = field(default_factory=AnswerOptions)


@dataclass(frozen=True)
class TextTask:
    """Tokens to continue. `json_schema`, `grammar` (GBNF): constraint of the text, at most one of them."""

    prompt: Sequence[int]
    json_schema: Any = None
    grammar: str | None = None
    options: AnswerOptions = field(default_factory=AnswerOptions)


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer (for a TextTask kind "content"), and the tokens that were taken since
    the last one.

    `tokens` may come without text (delta None): of a control token or of a character that is not
    whole yet.
    """

    delta: Delta | None
    tokens: tuple[int, ...] = ()
    probs: tuple[TokenProbs, ...] = ()


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


@dataclass(frozen=True)
class Prompt:
    """A rendered chat. `opened`: the channel that the prompt opens. `boundaries`: see Request."""

    tokens: list[int]
    text: str
    boundaries: list[int]
    opened: Literal["think", "response"] | None


class Run:
    """One answer being made. Iterate over `batches()` or await `whole()`; leaving either early cancels it."""

    prompt_tokens: int
    prompt: Sequence[int]

    def batches(self) -> AsyncIterator[list[Event]]:
        """All events that have come since the last batch, in order; the last one of all is Finished.

        Raises the LlamaK3Error that ended the answer.
        """
        raise NotImplementedError

    async def whole(self) -> tuple[Finished, list[Event]]:
        """Wait for the end: Finished, and all events before it."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End the answer within one micro-batch."""
        raise NotImplementedError


class Service:
    """Starts answers on an engine; used from the event loop. Knows the model's chat format and limits."""

    def __init__(self, engine: Engine, model: Any, model_name: str) -> None:
        raise NotImplementedError

    def render(self, task: ChatTask) -> Prompt:
        """ArgumentError names the message or tool that cannot be rendered."""
        raise NotImplementedError

    async def chat(self, task: ChatTask, n: int = 1) -> list[Run]:
        """Start n answers. ArgumentError (messages, tools, schema), ContextOverflowError, QueueFullError."""
        raise NotImplementedError

    async def text(self, task: TextTask, n: int = 1) -> list[Run]:
        """Start n continuations; errors as for `chat`."""
        raise NotImplementedError
