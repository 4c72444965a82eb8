"""Stream events of the Responses API: the same response in every cut, and the one that is given whole."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from llama_k3.server import opaque
from llama_k3.server.events import Event, TextDelta
from llama_k3.server.responses.stream import ResponseStream
from llama_k3.xtml import Delta, Message
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from .hand_made import CUTS, PARTS, PROPERTY, Part, events

Json = dict[str, Any]

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
SHOWN: Json = {
    "model": "tiny",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "metadata": {},
    "text": {"format": {"type": "text"}},
}


def streamed(answer: Sequence[Event], seal: bool = False) -> list[Json]:
    """Copies, as they go over the wire."""
    stream = ResponseStream("resp_1", SHOWN, 1_700_000_000, seal)
    sent = [*stream.start()]
    sent = [json.loads(json.dumps(part, allow_nan=False)) for part in sent]
    for event in answer:
        sent += [json.loads(json.dumps(part, allow_nan=False)) for part in stream.feed(event)]
    return sent


def timeless(response: Json) -> Json:
    return {**response, "completed_at": None}


@PROPERTY
@given(PARTS, CUTS, CUTS)
def test_streamed_is_whole_in_every_cut(parts: list[Part], cuts: list[int], other: list[int]) -> None:
    first, second = streamed(events(parts, cuts)), streamed(events(parts, other))
    assert timeless(first[-1]["response"]) == timeless(second[-1]["response"])
    assert [part["sequence_number"] for part in first] == list(range(len(first)))
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for part in copy.deepcopy(first):
        last = state.handle_event(EVENT.validate_python(part))[-1]
    assert last.type == "response.completed"
    Response.model_validate(first[-1]["response"], strict=True)
    found, wanted = (last.response.to_dict(), Response.model_validate(first[-1]["response"]).to_dict())
    for item in found["output"]:  # type: ignore[attr-defined]
        for part in (item, *item.get("content", ())):
            part.pop("parsed", None)
            part.pop("parsed_arguments", None)
    assert found["output"] == wanted["output"]


@PROPERTY
@given(PARTS, CUTS)
def test_deltas_add_up_to_the_items(parts: list[Part], cuts: list[int]) -> None:
    answer = events(parts, cuts)
    message: Message = answer[-1].message  # type: ignore[union-attr]  # the last one is Finished
    sent = streamed(answer)
    output = sent[-1]["response"]["output"]
    texts: dict[int, str] = {}
    open_item: int | None = None
    for part in sent[2:-1]:
        kind, index = part["type"], part["output_index"]
        if kind == "response.output_item.added":
            assert open_item is None
            assert index == len(texts)
            open_item, texts[index] = index, ""
        assert index == open_item
        if kind.endswith(".delta"):
            texts[index] += part["delta"]
            assert part["item_id"] == output[index]["id"]
        if kind == "response.output_item.done":
            assert part["item"] == output[index]
            open_item = None
    assert open_item is None
    for index, item in enumerate(output):
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert texts[index] == whole
    reasoning = [item["content"][0]["text"] for item in output if item["type"] == "reasoning"]
    assert "".join(reasoning) == message.reasoning
    assert "".join(i["content"][0]["text"] for i in output if i["type"] == "message") == message.content
    calls = [item for item in output if item["type"] == "function_call"]
    assert [(c["name"], c["arguments"]) for c in calls] == [(c.name, c.arguments) for c in message.tool_calls]
    assert len({item["id"] for item in output}) == len(output)


def test_order_of_the_events() -> None:
    parts: list[Part] = [
        ("reasoning", "Weather.", ""),
        ("content", "I look.", ""),
        ("call", '{"city": "Oslo"}', "get_weather"),
    ]
    sent = streamed(events(parts, [1000], "tool_calls", n_cached=60))
    text = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    assert [part["type"].removeprefix("response.") for part in sent] == [
        *("created", "in_progress"),
        *("output_item.added", *(name.format("reasoning_text") for name in text), "output_item.done"),
        *("output_item.added", *(name.format("output_text") for name in text), "output_item.done"),
        "output_item.added",
        *("function_call_arguments.delta", "function_call_arguments.done"),
        "output_item.done",
        "completed",
    ]
    response = Response.model_validate(sent[-1]["response"])
    assert (response.status, response.output_text) == ("completed", "I look.")
    assert response.usage is not None
    assert response.usage.to_dict() == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 120,
    }
    assert {item.status for item in response.output} == {"completed"}  # type: ignore[union-attr]


def test_arguments_outside_a_call_open_nothing() -> None:
    parts: list[Part] = [("call", '{"city": "Oslo"}', "get_weather"), ("content", "Hm.", "")]
    answer = events(parts, [50])
    stray = TextDelta(Delta("arguments", '{"city": "Rome"}', 0))
    assert [part["type"] for part in streamed([stray, *answer[:-1], stray, answer[-1]])] == [
        part["type"] for part in streamed(answer)
    ]


def test_an_answer_that_was_cut_is_incomplete() -> None:
    sent = streamed(events([("reasoning", "Let me see", "")], [3], "length"))
    response = sent[-1]["response"]
    assert sent[-1]["type"] == "response.incomplete"
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [(item["type"], item["status"]) for item in response["output"]] == [("reasoning", "incomplete")]


def test_a_failure_closes_what_is_open() -> None:
    stream = ResponseStream("resp_1", SHOWN, 1_700_000_000)
    stream.start()
    for event in events([("content", "Hel", "")], [5])[:-1]:
        stream.feed(event)
    sent = stream.fail("no memory")
    assert [part["type"] for part in sent][-2:] == ["response.output_item.done", "response.failed"]
    response = Response.model_validate(sent[-1]["response"])
    assert response.status == "failed"
    assert response.error is not None
    assert (response.error.code, response.error.message) == ("server_error", "no memory")
    assert response.output_text == "Hel"


@pytest.mark.parametrize("seal", [False, True])
def test_sealed_reasoning(seal: bool) -> None:
    (item,) = streamed(events([("reasoning", "Grüße", "")], [2]), seal)[-1]["response"]["output"]
    assert opaque.unseal(item["encrypted_content"] or "") == ("Grüße" if seal else "")
