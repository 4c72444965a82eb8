"""Stream events of the Messages API: the same message in every cut, and the one that is given whole."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message as ClientMessage
from hypothesis import given
from llama_k3.server import opaque
from llama_k3.server.anthropic.stream import MessageStream, whole_message
from llama_k3.server.events import Event, TextDelta
from llama_k3.xtml import Delta, Message

from .hand_made import CUTS, PARTS, PROPERTY, Part, events, finished

Json = dict[str, Any]


def streamed(answer: Sequence[Event], max_tokens: int = 20, omit_thinking: bool = False) -> list[Json]:
    stream = MessageStream("msg_1", "tiny", 100, max_tokens, omit_thinking)
    return [part for event in answer for part in stream.feed(event)]


def accumulated(parts: Sequence[Json]) -> Json:
    """What the official client makes of the events."""
    snapshot = None
    buffers: dict[int, bytes] = {}
    for part in copy.deepcopy(parts):
        snapshot = accumulate_event(event=part, current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[arg-type]
    assert snapshot is not None
    return snapshot.to_dict()


@PROPERTY
@given(PARTS, CUTS, CUTS)
def test_streamed_is_whole_in_every_cut(parts: list[Part], cuts: list[int], other: list[int]) -> None:
    first, second = streamed(events(parts, cuts)), streamed(events(parts, other))
    whole = whole_message(copy.deepcopy(first))
    assert whole == whole_message(copy.deepcopy(second))
    client = accumulated(first)
    for block in client["content"]:
        block.pop("parsed_output", None)
    wanted = ClientMessage.model_validate(whole).to_dict()
    assert client["content"] == wanted["content"]
    assert {key: client[key] for key in ("stop_reason", "usage")} == {
        key: wanted[key] for key in ("stop_reason", "usage")
    }


@PROPERTY
@given(PARTS, CUTS)
def test_nothing_is_lost_and_blocks_never_open_again(parts: list[Part], cuts: list[int]) -> None:
    answer = events(parts, cuts)
    message: Message = answer[-1].message  # type: ignore[union-attr]  # the last one is Finished
    open_block: int | None = None
    blocks: list[Json] = []
    for part in streamed(answer):
        json.dumps(part, allow_nan=False, ensure_ascii=False).encode()
        if part["type"] == "content_block_start":
            assert open_block is None
            assert part["index"] == len(blocks)
            open_block = part["index"]
            blocks.append(part["content_block"])
        elif part["type"] == "content_block_delta":
            assert part["index"] == open_block
        elif part["type"] == "content_block_stop":
            assert part["index"] == open_block
            open_block = None
    assert open_block is None
    content = whole_message(streamed(answer))["content"]
    assert "".join(block["thinking"] for block in content if block["type"] == "thinking") == message.reasoning
    assert "".join(block["text"] for block in content if block["type"] == "text") == message.content
    calls = [block for block in content if block["type"] == "tool_use"]
    assert [call["name"] for call in calls] == [call.name for call in message.tool_calls]
    assert len({call["id"] for call in calls}) == len(calls)


def test_order_of_the_events() -> None:
    parts: list[Part] = [
        ("reasoning", "Weather.", ""),
        ("content", "I look.", ""),
        ("call", '{"city": "Oslo"}', "get_weather"),
    ]
    found = streamed(events(parts, [1000], "tool_calls", n_cached=60))
    assert [part["type"] for part in found] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        "message_delta",
        "message_stop",
    ]
    usage = {"input_tokens": 40, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 0}
    assert found[0]["message"]["usage"] == {**usage, "output_tokens": 0}
    assert found[-2]["usage"] == {
        **usage,
        "output_tokens": 20,
        "output_tokens_details": {"thinking_tokens": 7},
    }
    whole = whole_message(found)
    assert whole["stop_reason"] == "tool_use"
    assert whole["content"] == [
        {"type": "thinking", "thinking": "Weather.", "signature": opaque.sign("Weather.")},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1_2", "name": "get_weather", "input": {"city": "Oslo"}},
    ]


@pytest.mark.parametrize(
    ("reason", "stop_word", "n_predicted", "wanted"),
    [
        ("stop", "", 5, ("end_turn", None)),
        ("stop", "Alice:", 5, ("stop_sequence", "Alice:")),
        ("tool_calls", "", 5, ("tool_use", None)),
        ("length", "", 20, ("max_tokens", None)),
        ("length", "", 5, ("model_context_window_exceeded", None)),
    ],
)
def test_stop_reasons(reason: Any, stop_word: str, n_predicted: int, wanted: tuple[str, str | None]) -> None:
    message = whole_message(streamed([finished(Message(), reason, stop_word, n_predicted=n_predicted)]))
    assert (message["stop_reason"], message["stop_sequence"]) == wanted
    assert message["content"] == []


def test_arguments_outside_a_call_open_nothing() -> None:
    parts: list[Part] = [("call", '{"city": "Oslo"}', "get_weather"), ("content", "Hm.", "")]
    answer = events(parts, [50])
    stray = TextDelta(Delta("arguments", '{"city": "Rome"}', 0))
    assert streamed([stray, *answer[:-1], stray, answer[-1]]) == streamed(answer)


def test_thinking_that_is_not_shown_is_in_the_signature() -> None:
    parts: list[Part] = [("reasoning", "Grüße, 世界", ""), ("content", "Hi", "")]
    found = streamed(events(parts, [2]), omit_thinking=True)
    assert not [part for part in found if part.get("delta", {}).get("type") == "thinking_delta"]
    thinking, text = whole_message(found)["content"]
    assert thinking["thinking"] == ""
    assert opaque.unseal(thinking["signature"]) == "Grüße, 世界"
    assert text == {"type": "text", "text": "Hi"}
