"""One answer on the engine's thread: tokens become deltas, stop strings end it, the thinking budget holds.

What is streamed and what is given whole are the same: the message is the sum of the deltas.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..errors import LlamaK3Error
from ..tokenizer import Tokenizer
from ..xtml import Delta, Message, ToolCall
from .engine.request import CONTINUE, Action, Progress, Result, Timings, TokenProbs
from .errors import RequestTimeoutError, ShutdownError
from .events import Event, Finished, FinishReason, TextDelta

logger = logging.getLogger(__name__)

StopType = Literal["none", "eos", "limit", "word"]


class Reader(Protocol):
    """The part of an AnswerReader (chat.py) that is used here."""

    def feed(self, token: int) -> list[Delta]:
        """What the token adds."""

    def flush(self) -> list[Delta]:
        """What was held back; nothing follows."""

    def close_thinking(self, tokenizer: Tokenizer) -> list[int]:
        """Tokens that end the reasoning from here; none outside of it."""


@dataclass
class _Taken:
    """A token that is not reported yet. `start`: where its text begins in the text that is held back.
    `is_text`: no control token, and none of those that name a channel."""

    token: int
    probs: TokenProbs | None
    start: int
    is_text: bool


class _Held:
    """Content that may begin a stop string, and the tokens that it came from."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = list(stop)
        self.text = ""
        self.word = ""
        """The stop string that was found."""

    def feed(self, text: str) -> str:
        """The text that can be shown now."""
        text = self.text + text
        found = [
            (text.index(word) + len(word), text.index(word), word) for word in self._stop if word in text
        ]
        if found:
            _, start, self.word = min(found)
            self.text = ""
            return text[:start]
        held = max((_overlap(text, word) for word in self._stop), default=0)
        self.text = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The text that no stop string can begin any more."""
        text, self.text = self.text, ""
        return text


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of `text` that begins `word`, but is not all of it."""
    longest = min(len(text), len(word) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)


@dataclass(frozen=True)
class AnswerRules:
    """`stop`: the content ends before the first of them. `thinking_budget`: most tokens of reasoning, after
    which the think channel is closed; -1: no limit. `max_calls`: most tool calls; -1: no limit. `deadline`:
    time.monotonic() at which the server ends the request."""

    stop: Sequence[str] = ()
    thinking_budget: int = -1
    max_calls: int = -1
    timings: bool = False
    deadline: float | None = None


class Answer:
    """The Sink of one request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        reader: Reader,
        rules: AnswerRules,
        emit: Callable[[Event | LlamaK3Error, bool], None],
    ) -> None:
        """`emit(event, last)` gets each event; an error in place of Finished where the answer failed."""
        self._tokenizer = tokenizer
        self._reader = reader
        self._rules = rules
        self._emit = emit
        self._held = _Held(rules.stop)
        self._pending: list[_Taken] = []
        self._message = Message()
        self._n_reasoning = 0
        self._closed_thinking = False
        self._too_many_calls = False
        self._failure: LlamaK3Error | None = None
        self._prompt: Progress | None = None
        self._n_predicted = 0
        self._first_token_s = 0.0

    def on_token(self, token: int, probs: TokenProbs | None) -> Action:
        try:
            return self._take(token, probs)
        except Exception as error:
            logger.exception("answer: token %d could not be read", token)
            self._failure = LlamaK3Error(f"The answer could not be read: {type(error).__name__}")
            return Action(stop=True)

    def on_progress(self, progress: Progress) -> None:
        self._prompt = progress
        self._emit(progress, False)

    def on_end(self, result: Result) -> None:
        try:
            last = self._end(result)
        except Exception as error:
            logger.exception("answer: the end could not be read")
            last = LlamaK3Error(f"The answer could not be read: {type(error).__name__}")
        self._emit(last, True)

    def _take(self, token: int, probs: TokenProbs | None) -> Action:
        self._n_predicted += 1
        if self._n_predicted == 1:
            self._first_token_s = time.perf_counter()
        is_text = self._tokenizer.special_name(token) is None
        taken = _Taken(token, probs, len(self._held.text), is_text)
        if is_text:
            self._pending.append(taken)
        deltas = self._reader.feed(token)
        for delta in deltas:
            self._add(delta)
        if not is_text:
            for earlier in self._pending:
                earlier.is_text = earlier.is_text and earlier.start < len(self._held.text)
            self._pending.append(taken)
            if not self._held.text:
                self._report(None, self._pending)
        if self._held.word or self._too_many_calls:
            return Action(stop=True)
        if deltas and deltas[-1].kind == "reasoning" and self._budget_is_spent():
            self._closed_thinking = True
            return Action(force=self._reader.close_thinking(self._tokenizer))
        return CONTINUE

    def _budget_is_spent(self) -> bool:
        budget = self._rules.thinking_budget
        return 0 <= budget <= self._n_reasoning and not self._closed_thinking

    def _add(self, delta: Delta) -> None:
        if self._held.word or self._too_many_calls:
            return
        if delta.kind == "content":
            self._show(self._held.feed(delta.text))
            return
        self._flush()
        if delta.kind == "reasoning":
            self._message.reasoning += delta.text
            self._n_reasoning += len(self._pending)
        elif delta.kind == "call":
            if len(self._message.tool_calls) == self._rules.max_calls:
                self._too_many_calls = True
                return
            index = len(self._message.tool_calls) + 1
            self._message.tool_calls.append(ToolCall(delta.text, index, ""))
        elif delta.call is not None:
            self._message.tool_calls[delta.call].arguments += delta.text
        self._report(delta, self._pending)

    def _show(self, text: str) -> None:
        """Report content and the tokens whose text begins in it; behind a stop string none are kept."""
        if not text:
            self._pending = [] if self._held.word else self._pending
            return
        shown = [taken for taken in self._pending if taken.start < len(text)]
        rest = self._pending[len(shown) :]
        for taken in rest:
            taken.start -= len(text)
        self._message.content += text
        self._report(Delta("content", text), [taken for taken in shown if taken.is_text])
        if hidden := [taken for taken in shown if not taken.is_text]:
            self._report(None, hidden)
        self._pending = [] if self._held.word else rest

    def _flush(self) -> None:
        if self._held.text:
            self._show(self._held.flush())

    def _report(self, delta: Delta | None, taken: list[_Taken]) -> None:
        tokens = tuple(item.token for item in taken)
        probs = tuple(item.probs for item in taken if item.probs is not None)
        self._emit(TextDelta(delta, tokens, probs, self._timings() if self._rules.timings else None), False)
        if taken is self._pending:
            self._pending = []

    def _timings(self) -> Timings:
        """Up to the last token."""
        prompt = self._prompt or Progress(0, 0, 0, 0.0)
        predicted_ms = 1e3 * (time.perf_counter() - self._first_token_s)
        n_prompt = prompt.processed - prompt.cache
        return Timings(prompt.cache, n_prompt, prompt.time_ms, self._n_predicted, predicted_ms)

    def _end(self, result: Result) -> Event | LlamaK3Error:
        for delta in self._reader.flush():
            self._add(delta)
        if not self._held.word:
            self._flush()
            if self._pending:
                self._report(None, self._pending)
        if self._failure is not None:
            return self._failure
        if result.reason == "error":
            return result.error or LlamaK3Error("The answer failed")
        if result.reason == "cancelled":
            return ShutdownError("The answer was cancelled")
        deadline = self._rules.deadline
        if result.reason == "deadline" and deadline is not None and time.monotonic() >= deadline:
            return RequestTimeoutError(
                f"The request took longer than the server allows, after {result.n_predicted} tokens of answer"
            )
        return Finished(
            self._finish_reason(result),
            self._stop_type(result),
            self._held.word,
            self._message,
            self._n_reasoning,
            result,
        )

    def _stop_type(self, result: Result) -> StopType:
        if result.reason in ("limit", "deadline"):
            return "limit"
        if result.reason == "word":
            return "word" if self._held.word else "eos"
        return "eos"

    def _finish_reason(self, result: Result) -> FinishReason:
        if result.reason in ("limit", "deadline"):
            return "length"
        return "tool_calls" if self._message.tool_calls and not self._held.word else "stop"
