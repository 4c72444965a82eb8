"""Tasks and answers without a wire format: what the OpenAI, Anthropic and llama.cpp endpoints share.

An endpoint turns its request into a ChatTask or TextTask, starts it, and turns the events of the
Run into its own JSON. Rendering, tokenising, grammars, parsing and stop strings happen here, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .. import xtml
from ..chat import ChatFormat, K3Chat, chat_format
from ..errors import ArgumentError, LlamaK3Error
from ..grammar import GrammarCompiler
from .answer import Answer, AnswerRules, Reader
from .engine.engine import Engine
from .engine.request import Constraint, Progress, Request, Sampling
from .errors import ContextOverflowError
from .events import Event, Finished, FinishReason, TextDelta
from .limits import MAX_ANSWERS
from .mailbox import Channel, Mailbox
from .readers import TextReader

if TYPE_CHECKING:
    from ..model import Model

__all__ = [
    "AnswerOptions",
    "ChatTask",
    "ContextOverflowError",
    "Event",
    "FinishReason",
    "Finished",
    "Progress",
    "Prompt",
    "Run",
    "Service",
    "TextDelta",
    "TextTask",
]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
ChatName = Literal["kimi-k3", "kimi-linear"]


@dataclass(frozen=True)
class AnswerOptions:
    """What both kinds of tasks have. `stop`: the content (for a TextTask: the text) ends before the first
    of them. `timings_per_token`: each TextDelta carries timings."""

    sampling: Sampling = Sampling()
    max_tokens: int = -1
    stop: Sequence[str] = ()
    n_probs: int | None = None
    cache_prompt: bool = True
    slot: int | None = None
    max_predict_ms: float | None = None
    ignore_eos: bool = False
    timings_per_token: bool = False


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
class Prompt:
    """A rendered chat. `opened`: the channel that the prompt opens. `boundaries`: see Request."""

    tokens: list[int]
    text: str
    boundaries: list[int]
    opened: Literal["think", "response"] | None


class Run:
    """One answer being made. Iterate over `batches()` or await `whole()`; leaving either early cancels it."""

    def __init__(self, engine: Engine, channel: Channel[Event | LlamaK3Error], request: Request) -> None:
        self._engine = engine
        self._channel = channel
        self.request = request
        self.prompt: Sequence[int] = request.prompt
        self.prompt_tokens = len(request.prompt)
        self.slot = -1
        """The slot that answered; -1 until the end."""

    async def batches(self) -> AsyncIterator[list[Event]]:
        """All events that have come since the last batch, in order; the last one of all is Finished.

        Raises the LlamaK3Error that ended the answer.
        """
        try:
            while True:
                items = await self._channel.take()
                events: list[Event] = [item for item in items if not isinstance(item, LlamaK3Error)]
                failure = items[-1] if isinstance(items[-1], LlamaK3Error) else None
                if events:
                    yield events
                if failure is not None:
                    raise failure
                if isinstance(events[-1], Finished):
                    self.slot = events[-1].result.slot
                    return
        finally:
            self.cancel()

    async def whole(self) -> tuple[Finished, list[Event]]:
        """Wait for the end: Finished, and all events before it."""
        self._channel.wait_for_last()
        events: list[Event] = []
        async for batch in self.batches():
            events += batch
        finished = events.pop()
        assert isinstance(finished, Finished)
        return finished, events

    def cancel(self) -> None:
        """End the answer within one micro-batch."""
        self._engine.cancel(self.request)


class Service:
    """Starts answers on an engine; used from the event loop. Knows the model's chat format and limits."""

    def __init__(
        self,
        engine: Engine,
        model: Model,
        model_name: str,
        request_timeout: float | None = None,
        n_workers: int = 2,
    ) -> None:
        """`request_timeout`: seconds after which a request is ended with a RequestTimeoutError.
        `n_workers`: threads that render and tokenise."""
        self.engine = engine
        self.model = model
        self.model_name = model_name
        self.tokenizer = model.tokenizer
        slots = engine.slots()
        self.n_slots = len(slots)
        self.n_ctx = slots[0].n_ctx
        template = model.metadata.get("tokenizer.chat_template")
        self.chat_format: ChatFormat | None = chat_format(model.tokenizer, template)
        self.chat_name = _chat_name(self.chat_format)
        self._request_timeout = request_timeout
        self._workers = ThreadPoolExecutor(n_workers, "llama-k3-text")
        # Takes about a second for a full vocabulary.
        self._compiler = self._workers.submit(GrammarCompiler, self.tokenizer, self.chat_name)
        self._mailbox: Mailbox | None = None

    async def in_thread(self, function: Callable[[], _T]) -> _T:
        """Run work on texts beside the event loop, which goes on with the other streams."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function)

    def render(self, task: ChatTask) -> Prompt:
        """ArgumentError names the message or tool that cannot be rendered."""
        chat = self._chat()
        segments = chat.render(
            task.messages,
            task.tools,
            thinking=task.thinking,
            effort=task.effort,
            tool_choice=task.tool_choice,
            response_format=task.response_format,
        )
        tokens, boundaries = xtml.encode_with_boundaries(segments, self.tokenizer)
        text = "".join(segment.text for segment in segments)
        return Prompt(tokens, text, boundaries, chat.opened(task.thinking))

    async def chat(self, task: ChatTask, n: int = 1) -> list[Run]:
        """Start n answers. ArgumentError (messages, tools, schema), ContextOverflowError, QueueFullError."""
        if not task.messages:
            raise ArgumentError("messages: found none, wanted at least one")
        if task.thinking_budget == 0:
            task = replace(task, thinking=False)
        chat = self._chat()

        def prepare() -> tuple[Prompt, list[Constraint | None]]:
            prompt = self.render(task)
            self._check_length(prompt.tokens)
            return prompt, [self._chat_constraint(task, prompt) for _ in range(n)]

        self._check_count(n)
        prompt, constraints = await self.in_thread(prepare)
        rules = AnswerRules(
            stop=task.options.stop,
            timings=task.options.timings_per_token,
            thinking_budget=task.thinking_budget if prompt.opened == "think" else -1,
            max_calls=-1 if task.parallel_tool_calls else 1,
        )
        return self._start(
            prompt.tokens,
            prompt.boundaries,
            constraints,
            task.options,
            rules,
            lambda: chat.reader(self.tokenizer, prompt.opened),
        )

    async def text(self, task: TextTask, n: int = 1) -> list[Run]:
        """Start n continuations; errors as for `chat`."""
        self._check_count(n)
        self._check_length(task.prompt)
        constraints: list[Constraint | None] = [None] * n
        if task.json_schema is not None or task.grammar is not None:
            constraints = await self.in_thread(lambda: [self._text_constraint(task) for _ in range(n)])
        return self._start(
            task.prompt,
            (),
            constraints,
            task.options,
            AnswerRules(stop=task.options.stop, timings=task.options.timings_per_token),
            lambda: TextReader(self.tokenizer),
        )

    def close(self) -> None:
        """Ends the worker threads; the engine is its owner's."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _chat(self) -> ChatFormat:
        if self.chat_format is None:
            raise ArgumentError(
                "messages: found a model whose vocabulary has no chat markers, wanted one with them "
                "(/completion continues texts)"
            )
        return self.chat_format

    @staticmethod
    def _check_count(n: int) -> None:
        if not 1 <= n <= MAX_ANSWERS:
            raise ArgumentError(f"n: found {n}, wanted 1 .. {MAX_ANSWERS}")

    def _check_length(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise ArgumentError("prompt: found no tokens, wanted at least one")
        if len(tokens) >= self.n_ctx:
            raise ContextOverflowError(len(tokens), self.n_ctx)

    def _chat_constraint(self, task: ChatTask, prompt: Prompt) -> Constraint | None:
        return self._compiler.result().chat(
            task.tools, task.tool_choice, task.response_format, prompt.opened, task.parallel_tool_calls
        )

    def _text_constraint(self, task: TextTask) -> Constraint | None:
        compiler = self._compiler.result()
        if task.grammar is not None:
            return compiler.gbnf(task.grammar)
        return None if task.json_schema is None else compiler.json_schema(task.json_schema)

    def _start(
        self,
        prompt: Sequence[int],
        boundaries: Sequence[int],
        constraints: Sequence[Constraint | None],
        options: AnswerOptions,
        rules: AnswerRules,
        reader: Callable[[], Reader],
    ) -> list[Run]:
        """Submit one request for each constraint; all of them or none."""
        if self._request_timeout is not None:
            rules = replace(rules, deadline=time.monotonic() + self._request_timeout)
        runs: list[Run] = []
        try:
            for index, constraint in enumerate(constraints):
                channel: Channel[Event | LlamaK3Error] = Channel(self._loop_mailbox())
                # A grammar says where its text ends: no answer could go on behind it.
                ignore_eos = options.ignore_eos and constraint is None
                request = Request(
                    prompt=prompt,
                    sink=Answer(self.tokenizer, reader(), rules, channel.put),
                    sampling=_numbered(options.sampling, index),
                    max_tokens=options.max_tokens,
                    boundaries=boundaries,
                    constraint=constraint,
                    n_probs=options.n_probs,
                    cache_prompt=options.cache_prompt,
                    slot=options.slot,
                    max_predict_ms=options.max_predict_ms,
                    deadline=rules.deadline,
                    end_ids=frozenset() if ignore_eos else self.tokenizer.end_ids,
                    banned=self.tokenizer.end_ids if ignore_eos else frozenset(),
                    after=runs[0].request if runs else None,
                    info={"model": self.model_name},
                )
                self.engine.submit(request)
                runs.append(Run(self.engine, channel, request))
        except LlamaK3Error:
            for run in runs:
                run.cancel()
            raise
        return runs

    def _loop_mailbox(self) -> Mailbox:
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        return self._mailbox


def _chat_name(chat: ChatFormat | None) -> ChatName | None:
    if chat is None:
        return None
    return "kimi-k3" if isinstance(chat, K3Chat) else "kimi-linear"


def _numbered(sampling: Sampling, index: int) -> Sampling:
    """The sampling of the answer `index` (from 0): with a seed of its own."""
    if sampling.seed is None or index == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + index) % 2**64)
