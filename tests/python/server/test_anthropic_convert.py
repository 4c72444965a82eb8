"""Requests of the Messages API as tasks: what reaches the renderer, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_k3.errors import ArgumentError
from llama_k3.server import opaque
from llama_k3.server.anthropic.convert import chat_task
from llama_k3.server.anthropic.routes import error_body
from llama_k3.server.anthropic.schema import MessagesRequest
from llama_k3.server.engine.request import Sampling
from llama_k3.server.errors import ApiError, ContextOverflowError, api_error
from llama_k3.server.options import ServerOptions
from llama_k3.server.service import ChatTask
from pydantic import ValidationError

Json = dict[str, Any]
DEFAULTS = ServerOptions(sampling=Sampling(temperature=0.7, min_p=0.1), cache_prompt=False)
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object"}}


def task(*messages: Json, defaults: ServerOptions = DEFAULTS, **fields: Any) -> ChatTask:
    body = {"model": "k3", "max_tokens": 5, "messages": list(messages) or [user("Hi")], **fields}
    return chat_task(MessagesRequest.model_validate(json.loads(json.dumps(body))), defaults)


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> Json:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


def test_a_tool_dialogue() -> None:
    found = task(
        user([text("Weather?"), text("In Oslo.")]),
        assistant(
            {"type": "thinking", "thinking": "Look.", "signature": "of another server"},
            text("I look."),
            {
                "type": "tool_use",
                "id": "toolu_1",
                "name": "get_weather",
                "input": {"city": "Oslo", "n": [1, 2]},
            },
            {"type": "tool_use", "id": "toolu_2", "name": "get_time", "input": {}},
        ),
        user(
            [
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [text("ten"), text(" past")]},
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no city", "is_error": True},
                text("Well?"),
            ]
        ),
        system="Be brief.",
        tools=[TOOL],
    )
    assert found.messages == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Weather?"}, {"type": "text", "text": "In Oslo."}],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Look.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "n": [1, 2]}'},
                },
                {"id": "toolu_2", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_2", "name": "get_time", "content": "ten past"},
        {"role": "tool", "tool_call_id": "toolu_1", "name": "get_weather", "content": "Error: no city"},
        {"role": "user", "content": "Well?"},
    ]
    function = {"name": "get_weather", "description": "Weather", "parameters": {"type": "object"}}
    assert found.tools == [{"type": "function", "function": function}]


def test_fields_of_the_answer() -> None:
    found = task(
        temperature=0, top_p=0.5, top_k=3, stop_sequences=["a", "b"], metadata={"user_id": "x"}, stream=True
    )
    assert found.options.sampling == Sampling(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    assert (found.options.max_tokens, found.options.stop) == (5, ("a", "b"))
    assert found.options.cache_prompt is False
    assert task().options.sampling == DEFAULTS.sampling


@pytest.mark.parametrize(
    ("thinking", "wanted"),
    [
        (None, (True, -1)),
        ({"type": "disabled"}, (False, -1)),
        ({"type": "adaptive"}, (True, -1)),
        ({"type": "enabled", "budget_tokens": 1024, "display": None}, (True, 1024)),
    ],
)
def test_thinking(thinking: Any, wanted: tuple[bool, int]) -> None:
    found = task(thinking=thinking)
    assert (found.thinking, found.thinking_budget) == wanted


def test_the_server_decides_what_the_request_leaves_out() -> None:
    defaults = ServerOptions(thinking=False, reasoning_effort="low", reasoning_budget=50)
    found = task(defaults=defaults)
    assert (found.thinking, found.effort, found.thinking_budget) == (False, "low", 50)
    found = task(defaults=defaults, thinking={"type": "adaptive"}, output_config={"effort": "xhigh"})
    assert (found.thinking, found.effort, found.thinking_budget) == (True, "max", 50)
    assert not task(defaults=ServerOptions(reasoning_budget=0)).thinking


@pytest.mark.parametrize(
    ("choice", "wanted", "parallel"),
    [
        (None, None, True),
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        (
            {"type": "tool", "name": "get_weather"},
            {"type": "function", "function": {"name": "get_weather"}},
            True,
        ),
    ],
)
def test_tool_choice(choice: Any, wanted: Any, parallel: bool) -> None:
    found = task(tools=[TOOL], tool_choice=choice)
    assert (found.tool_choice, found.parallel_tool_calls) == (wanted, parallel)


def test_output_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    found = task(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert found.response_format is not None
    assert found.response_format["json_schema"]["schema"] == schema


def test_a_line_that_changes_with_every_request_does_not_reach_the_prompt() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={};"
    tasks = [
        task(system=[text(header.format(nonce)), text("You are an agent.")]).messages
        for nonce in ("1a", "2b")
    ]
    assert tasks[0] == tasks[1] == [{"role": "system", "content": "You are an agent."}, user("Hi")]
    assert task(system=header.format("1a") + "\nYou are an agent.").messages == tasks[0]
    assert task(system=header.format("1a")).messages == [user("Hi")]


def test_reasoning_that_the_client_did_not_see_comes_back() -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": opaque.seal("Grüße")}
    redacted = {"type": "redacted_thinking", "data": "of another server"}
    messages = task(user("Hi"), assistant(redacted, hidden, text("Hello")), user("Bye")).messages
    assert messages[1] == {"role": "assistant", "content": "Hello", "reasoning_content": "Grüße"}


@pytest.mark.parametrize(
    "signature", ["", "abc", opaque.sign("x"), "k3-text-%%%", "k3-text-_w==", "k3-text-ä"]
)
def test_signatures_that_hold_nothing(signature: str) -> None:
    assert opaque.unseal(signature) == ""


def test_messages_of_the_assistant_in_a_row_are_one() -> None:
    call = {"type": "tool_use", "id": "t", "name": "get_time", "input": {}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "t"}
    split = task(user("Hi"), assistant(thought), assistant(text("So")), assistant(call), user([result]))
    joined = task(user("Hi"), assistant(thought, text("So"), call), user([result]))
    assert split.messages == joined.messages
    assert split.messages[-1]["content"] == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [user("Hi"), assistant(text("The"))]}, ["messages[1].role", "assistant"]),
        (
            {"messages": [user([{"type": "tool_result", "tool_use_id": "x", "content": "y"}])]},
            ["messages[0].content[0].tool_use_id", "'x'"],
        ),
        (
            {"messages": [user([{"type": "tool_use", "id": "x", "name": "y", "input": {}}])]},
            ["messages[0].content[0]", "tool_use"],
        ),
        (
            {"messages": [assistant({"type": "tool_result", "tool_use_id": "x"}), user("Hi")]},
            ["messages[0].content[0]", "tool_result"],
        ),
        ({"tool_choice": {"type": "any"}}, ["tool_choice.type", "any"]),
        ({"tool_choice": {"type": "tool", "name": "f"}}, ["tool_choice.name", "'f'"]),
        ({"thinking": {"type": "enabled"}}, ["thinking.budget_tokens"]),
        ({"container": "c"}, ["container"]),
        ({"mcp_servers": [{}]}, ["mcp_servers"]),
    ],
)
def test_refused(fields: Json, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        task(**fields)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"max_tokens": None}, ("max_tokens",)),
        ({"max_tokens": 0}, ("max_tokens",)),
        ({"max_tokens": 2**31}, ("max_tokens",)),
        ({"max_tokens": True}, ("max_tokens",)),
        ({"max_tokens": "5"}, ("max_tokens",)),
        ({"messages": []}, ("messages",)),
        ({"messages": [user([{"type": "image", "source": {}}])]}, ("messages", 0, "content", 0)),
        ({"messages": [user([{"type": "document", "source": {}}])]}, ("messages", 0, "content", 0)),
        ({"messages": [{"role": "tool", "content": "x"}]}, ("messages", 0, "role")),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ("tools", 0, "type")),
        ({"tools": [{"name": "f"}]}, ("tools", 0, "input_schema")),
        ({"thinking": {"type": "between_tools"}}, ("thinking", "type")),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, ("thinking", "budget_tokens")),
        ({"temperature": 2.5}, ("temperature",)),
        ({"temperature": float("nan")}, ("temperature",)),
        ({"top_p": 0}, ("top_p",)),
        ({"top_k": -1}, ("top_k",)),
        ({"stop_sequences": [""]}, ("stop_sequences", 0)),
        ({"stop_sequences": ["x"] * 65}, ("stop_sequences",)),
        ({"output_config": {"effort": "most"}}, ("output_config", "effort")),
    ],
)
def test_wrong_fields(fields: Json, where: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        task(**fields)
    assert caught.value.errors()[0]["loc"][: len(where)] == where


def test_null_and_unknown_fields_are_as_if_missing() -> None:
    names = (
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "stop_sequences",
        "temperature",
        "stream",
        "metadata",
    )
    nulls: dict[str, Any] = dict.fromkeys(names)
    assert task(**nulls, betas=["x"], context_management={"edits": []}) == task()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ApiError(400, "wrong"), "invalid_request_error", "wrong"),
        (ApiError(401, "who?"), "authentication_error", "who?"),
        (ApiError(413, "long"), "request_too_large", "long"),
        (ApiError(503, "full"), "overloaded_error", "full"),
        (ApiError(500, "broken"), "api_error", "broken"),
        (
            api_error(ContextOverflowError(70, 64)),
            "invalid_request_error",
            "prompt is too long: 70 tokens > 64 maximum",
        ),
    ],
)
def test_errors(error: ApiError, kind: str, words: str) -> None:
    body = error_body(error)
    assert (body["type"], body["error"]["type"], body["error"]["message"]) == ("error", kind, words)
