"""The sink of an answer: what it shows is the same for every cut, ends at stop strings, and never raises."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_k3.chat import K3Chat
from llama_k3.errors import LlamaK3Error
from llama_k3.server.answer import Answer, AnswerRules, Reader
from llama_k3.server.engine.request import Result, StopReason, Timings, TokenProbs
from llama_k3.server.errors import RequestTimeoutError, ShutdownError
from llama_k3.server.events import Event, Finished, TextDelta
from llama_k3.server.readers import TextReader
from llama_k3.xtml import Delta

from llama_k3 import Tokenizer

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=150)
LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


class Broken:
    """A reader that fails."""

    def feed(self, token: int) -> list[Delta]:
        raise ZeroDivisionError

    def flush(self) -> list[Delta]:
        raise ZeroDivisionError

    def close_thinking(self, tokenizer: Tokenizer) -> list[int]:
        return []


class Made:
    """An answer that was fed: its events, and whether it asked to stop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        reader: Reader,
        rules: AnswerRules,
        tokens: Sequence[int],
        reason: StopReason,
    ) -> None:
        self.events: list[Event] = []
        self.last: Event | LlamaK3Error | None = None
        self.forced: list[int] = []
        self.n_taken = 0
        answer = Answer(tokenizer, reader, rules, self._emit)
        queue = list(tokens)
        while queue:
            token = queue.pop(0)
            self.n_taken += 1
            action = answer.on_token(token, TokenProbs(token, -1.0, ((token, -1.0),)))
            if action.force:
                self.forced = list(action.force)
                queue = self.forced + queue
            if action.stop:
                reason = "word"
                break
        answer.on_end(Result(reason, 0, 3, self.n_taken, Timings(0, 3, 1.0, self.n_taken, 1.0)))

    def _emit(self, event: Event | LlamaK3Error, last: bool) -> None:
        assert self.last is None
        if last:
            self.last = event
        else:
            assert not isinstance(event, LlamaK3Error)
            self.events.append(event)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.last, Finished)
        return self.last

    def text(self, kind: str = "content") -> str:
        deltas = [event.delta for event in self.events if isinstance(event, TextDelta)]
        return "".join(delta.text for delta in deltas if delta is not None and delta.kind == kind)

    def shown_tokens(self) -> list[int]:
        """Those that come with content."""
        return [
            probs.token
            for event in self.events
            if isinstance(event, TextDelta) and event.delta is not None and event.delta.kind == "content"
            for probs in event.probs
        ]


def first_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the stop string that is complete first."""
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


def make(tokenizer: Tokenizer, text: str, stops: Sequence[str], reason: StopReason = "eos") -> Made:
    tokens = [token for letter in text for token in tokenizer.encode(letter)]
    return Made(tokenizer, TextReader(tokenizer), AnswerRules(stop=stops), tokens, reason)


@EXAMPLES
@given(text=LETTERS, stops=STOPS)
def test_the_text_ends_before_the_first_stop(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    made = make(tokenizer, text, stops)
    wanted = first_stop(text, stops)
    assert made.text() == made.finished.message.content == wanted
    found = made.finished.stopping_word
    assert (made.finished.stop_type == "word") == (wanted != text or found != "")
    assert found in ("", *stops) and (not found or (wanted + found) in text)
    # One token a letter: each that is shown is reported, those of the stop string are not.
    assert len(made.shown_tokens()) == len(wanted)


@EXAMPLES
@given(data=st.binary(max_size=12), stops=STOPS)
def test_characters_are_whole(tokenizer: Tokenizer, data: bytes, stops: list[str]) -> None:
    tokens = [tokenizer.ranks[bytes([byte])] for byte in data]
    made = Made(tokenizer, TextReader(tokenizer), AnswerRules(stop=stops), tokens, "limit")
    assert made.text() == made.finished.message.content
    if not stops:
        assert made.text() == data.decode("utf-8", "replace")
    for event in made.events:
        assert isinstance(event, TextDelta)
        if event.delta is not None:
            event.delta.text.encode("utf-8")


def test_held_back_text_comes_before_a_call(tokenizer: Tokenizer) -> None:
    call = '<|open|>call tool="f" index="1"<|sep|><|end_of_msg|>'
    text = f"ab<|close|>response<|sep|><|open|>tools<|sep|>{call}"
    tokens = tokenizer.encode(text, special=True)
    made = Made(tokenizer, K3Chat().reader(tokenizer, "response"), AnswerRules(stop=["bc"]), tokens, "eos")
    kinds = [event.delta.kind for event in made.events if isinstance(event, TextDelta) and event.delta]
    assert kinds[0] == "content" and "call" in kinds and "content" not in kinds[kinds.index("call") :]
    assert made.text() == "ab" and made.finished.reason == "tool_calls"
    assert tokenizer.decode(made.shown_tokens()) == "ab"
    assert [call.name for call in made.finished.message.tool_calls] == ["f"]
    assert made.finished.message.tool_calls[0].arguments == made.text("arguments")


def test_at_most_one_call(tokenizer: Tokenizer) -> None:
    calls = "".join(f'<|open|>call tool="{name}" index="1"<|sep|><|close|>call<|sep|>' for name in "fg")
    text = f"<|close|>response<|sep|><|open|>tools<|sep|>{calls}<|close|>tools<|sep|>"
    tokens = tokenizer.encode(text, special=True)
    for most, names in ((-1, ["f", "g"]), (1, ["f"])):
        rules = AnswerRules(max_calls=most)
        made = Made(tokenizer, K3Chat().reader(tokenizer, "response"), rules, tokens, "eos")
        assert [call.name for call in made.finished.message.tool_calls] == names
        assert made.finished.reason == "tool_calls"
        assert (made.n_taken < len(tokens)) == (most == 1)


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_budget_closes_the_think_channel(tokenizer: Tokenizer, budget: int) -> None:
    tokens = [*tokenizer.encode("a") * 8, *tokenizer.encode("b")]
    reader = K3Chat().reader(tokenizer, "think")
    made = Made(tokenizer, reader, AnswerRules(thinking_budget=budget), tokens, "limit")
    assert made.text("reasoning") == "a" * budget and made.finished.n_reasoning == budget
    assert tokenizer.decode(made.forced) == "<|close|>think<|sep|><|open|>response<|sep|>"
    assert made.text() == "a" * (8 - budget) + "b"


def test_ends(tokenizer: Tokenizer) -> None:
    def end(reason: StopReason, rules: AnswerRules | None = None) -> Event | LlamaK3Error | None:
        tokens = tokenizer.encode("a")
        return Made(tokenizer, TextReader(tokenizer), rules or AnswerRules(), tokens, reason).last

    reasons: dict[StopReason, tuple[str, str]] = {
        "eos": ("stop", "eos"),
        "limit": ("length", "limit"),
        "deadline": ("length", "limit"),
    }
    for reason, wanted in reasons.items():
        last = end(reason)
        assert isinstance(last, Finished) and (last.reason, last.stop_type) == wanted
    assert isinstance(end("cancelled"), ShutdownError)
    assert isinstance(end("deadline", AnswerRules(deadline=0.0)), RequestTimeoutError)
    assert isinstance(end("error"), LlamaK3Error)


def test_a_reader_that_fails_ends_the_answer(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        made = Made(tokenizer, Broken(), AnswerRules(), tokenizer.encode("aaa"), "eos")
    assert made.n_taken == 1 and isinstance(made.last, LlamaK3Error)
    assert "ZeroDivisionError" in caplog.text
