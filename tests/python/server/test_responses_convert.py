"""Requests of the Responses API as tasks: what reaches the renderer, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_k3.server import opaque
from llama_k3.server.engine.request import Sampling
from llama_k3.server.errors import ApiError
from llama_k3.server.options import ServerOptions
from llama_k3.server.responses.convert import chat_task
from llama_k3.server.responses.schema import ResponsesRequest
from llama_k3.server.service import ChatTask
from pydantic import ValidationError

Json = dict[str, Any]
DEFAULTS = ServerOptions(sampling=Sampling(temperature=0.7, min_p=0.1), n_predict=99)
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}
CLOCK = {"type": "function", "name": "get_time"}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "get_weather",
    "arguments": '{"a":1e2}',
}


def task(given: Any = "Hi", defaults: ServerOptions = DEFAULTS, **fields: Any) -> ChatTask:
    body = json.loads(json.dumps({"model": "k3", "input": given, **fields}))
    return chat_task(ResponsesRequest.model_validate(body), defaults)


def test_a_tool_dialogue() -> None:
    found = task(
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm"}],
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            CALL,
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "sunny"}],
            },
        ],
        instructions="You are an agent.",
        tools=[TOOL],
    )
    assert found.messages == [
        {"role": "system", "content": "You are an agent."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"a":1e2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "get_weather", "content": "sunny"},
    ]
    function = {"name": "get_weather", "parameters": {"type": "object"}, "strict": True}
    assert found.tools == [{"type": "function", "function": function}]


def test_fields_of_the_answer() -> None:
    found = task(temperature=0, top_p=0.5, max_output_tokens=7, parallel_tool_calls=False)
    assert found.options.sampling == Sampling(temperature=0, top_p=0.5, min_p=0.1)
    assert (found.options.max_tokens, found.parallel_tool_calls) == (7, False)
    assert (task().options.max_tokens, task().options.sampling) == (99, DEFAULTS.sampling)


@pytest.mark.parametrize(
    ("effort", "wanted"),
    [
        (None, (True, None)),
        ("none", (False, None)),
        ("minimal", (True, "low")),
        ("medium", (True, "high")),
        ("xhigh", (True, "max")),
    ],
)
def test_effort(effort: str | None, wanted: tuple[bool, str | None]) -> None:
    found = task(reasoning={"effort": effort, "summary": "auto"})
    assert (found.thinking, found.effort) == wanted


@pytest.mark.parametrize(
    ("choice", "wanted", "names"),
    [
        (None, None, ["get_weather", "get_time"]),
        ("required", "required", ["get_weather", "get_time"]),
        (
            {"type": "function", "name": "get_time"},
            {"type": "function", "function": {"name": "get_time"}},
            ["get_weather", "get_time"],
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_time"}],
            },
            "required",
            ["get_time"],
        ),
    ],
)
def test_tool_choice(choice: Any, wanted: Any, names: list[str]) -> None:
    found = task(tools=[TOOL, CLOCK], tool_choice=choice)
    assert found.tool_choice == wanted
    assert [tool["function"]["name"] for tool in found.tools or ()] == names


def test_text_format() -> None:
    schema = {"type": "object"}
    given = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    assert task(text={"format": given}).response_format == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
    assert task(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}
    assert task(text={"format": {"type": "text"}, "verbosity": "medium"}).response_format is None


def test_sealed_reasoning_comes_back() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": opaque.seal("Grüße")}
    messages = task([{"role": "user", "content": "Hi"}, item, {"role": "user", "content": "Bye"}]).messages
    assert messages[1] == {"role": "assistant", "content": "", "reasoning_content": "Grüße"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"given": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[0].call_id"),
        ({"given": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]}, "input"),
    ],
)
def test_refused(fields: Json, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        task(**fields)
    assert (caught.value.status_code, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"given": []}, ("input",)),
        ({"given": 3}, ("input",)),
        ({"given": [{"type": "item_reference", "id": "x"}]}, ("input", 0)),
        ({"given": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, ("input", 0)),
        ({"max_output_tokens": 0}, ("max_output_tokens",)),
        ({"max_output_tokens": 2**31}, ("max_output_tokens",)),
        ({"temperature": 2.5}, ("temperature",)),
        ({"tools": [{"type": "web_search"}]}, ("tools", 0, "type")),
        ({"tools": [{"type": "custom", "name": "x"}]}, ("tools", 0, "type")),
        ({"tool_choice": {"type": "file_search"}}, ("tool_choice",)),
        ({"reasoning": {"effort": "most"}}, ("reasoning", "effort")),
        ({"metadata": {"a": 1}}, ("metadata", "a")),
        ({"metadata": {str(n): "" for n in range(17)}}, ("metadata",)),
    ],
)
def test_wrong_fields(fields: Json, where: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        task(**fields)
    assert caught.value.errors()[0]["loc"][: len(where)] == where


def test_null_and_unknown_fields_are_as_if_missing() -> None:
    names = (
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "include",
        "store",
        "metadata",
        "stream",
    )
    nulls: dict[str, Any] = dict.fromkeys(names)
    assert task(**nulls, service_tier="auto", user="x", prompt_cache_key="y") == task()
    assert task(store=False, background=False, truncation="disabled") == task()
