"""Hand-made events of answers, in any order of channels and with any cuts of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from llama_k3.server.engine.request import Progress, Result, StopReason, Timings
from llama_k3.server.events import Event, Finished, FinishReason, TextDelta
from llama_k3.xtml import Delta, Message, ToolCall

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)

Kind = Literal["reasoning", "content", "call"]
Part = tuple[Kind, str, str]
"""What the model does in one go: kind, text (of a call: its arguments), name of the call."""

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ARGUMENTS = st.one_of(
    st.sampled_from(
        [
            '{"city": "Oslo"}',
            '{"a": [1, 2.5e3, {"b": null}], "c": "x\\n\\u00e9\\ud83d\\ude00"}',
            "{}",
            "",
            "twelve",
            '["Oslo"]',
            '{"city": "Os',
            '{"n": twelve}',
            '{"n": 1e999}',
            '{"s": "\\ud800"}',
        ]
    ),
    TEXTS,
)
PARTS: st.SearchStrategy[list[Part]] = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["reasoning", "content"]), TEXTS, st.just("")),
        st.tuples(st.just("call"), ARGUMENTS, st.sampled_from(["get_weather", "get_time"])),
    ),
    max_size=6,
)
CUTS = st.lists(st.integers(1, 7), min_size=1, max_size=8)
"""Lengths of pieces, in turn."""


def events(
    parts: Sequence[Part],
    cuts: Sequence[int],
    reason: FinishReason = "stop",
    stop_word: str = "",
    n_cached: int = 0,
    n_predicted: int = 20,
) -> list[Event]:
    """An answer to a prompt of 100 tokens."""
    made: list[Event] = [Progress(100, n_cached, n_cached, 0.0), Progress(100, n_cached, 100, 5.0)]
    message = Message()
    lengths = [*cuts]
    for kind, text, name in parts:
        call: int | None = None
        if kind == "call":
            call = len(message.tool_calls)
            message.tool_calls.append(ToolCall(name, call + 1, text))
            made.append(TextDelta(Delta("call", name, call)))
        elif kind == "reasoning":
            message.reasoning += text
        else:
            message.content += text
        rest = text
        while rest:
            lengths.append(lengths.pop(0))
            piece, rest = rest[: lengths[-1]], rest[lengths[-1] :]
            made.append(TextDelta(None, (1,)))
            made.append(TextDelta(Delta("arguments" if kind == "call" else kind, piece, call), (1,)))
    return [*made, finished(message, reason, stop_word, n_cached, n_predicted)]


def finished(
    message: Message, reason: FinishReason, stop_word: str = "", n_cached: int = 0, n_predicted: int = 20
) -> Finished:
    """The end of an answer."""
    ended: StopReason = "limit" if reason == "length" else "word" if stop_word else "eos"
    result = Result(ended, 0, 100, n_predicted, Timings(n_cached, 100 - n_cached, 5.0, n_predicted, 9.0))
    stop_type: Literal["eos", "limit", "word"] = (
        "word" if stop_word else ("limit" if ended == "limit" else "eos")
    )
    return Finished(reason, stop_type, stop_word, message, 7, result)
