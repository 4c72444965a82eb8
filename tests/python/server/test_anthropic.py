"""Anthropic's own client against the server: what its users do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from llama_k3.server.options import ServerOptions

from scripts.tiny_k3.words import WEATHER_TOOL

from .conftest import MODEL_NAME, RunningServer

Json = dict[str, Any]

GREEDY = {"temperature": 0}
"""The client has no parameter for it any more."""

_FUNCTION: Any = WEATHER_TOOL["function"]
TOOL: Any = {
    "name": _FUNCTION["name"],
    "description": _FUNCTION["description"],
    "input_schema": _FUNCTION["parameters"],
    "cache_control": {"type": "ephemeral"},
}


@pytest.fixture
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as made:
        yield made


def client_of(server: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def ask(client: anthropic.Anthropic, content: Any, **fields: Any) -> anthropic.types.Message:
    messages = content if isinstance(content, list) and "role" in content[0] else [user(content)]
    settings: Json = {"model": "any", "max_tokens": 200, "extra_body": GREEDY, **fields}
    answer = client.messages.create(messages=messages, **settings)
    assert isinstance(answer, anthropic.types.Message)
    return answer


def n_prompt(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def timeless(message: anthropic.types.Message) -> Json:
    """Without ids, and without what tells how much was reused."""
    found = json.loads(message.to_json().replace(message.id.removeprefix("msg_"), ""))
    found["usage"] = {"output_tokens": found["usage"]["output_tokens"]}
    found.pop("stop_details", None)
    return found


def test_chat(client: anthropic.Anthropic) -> None:
    answer = ask(client, "What is 27 + 15?", system="You are a helpful assistant.")
    thinking, text = answer.content
    assert thinking.type == "thinking" and thinking.thinking and thinking.signature
    assert text.type == "text" and text.text == "27 + 15 = 42."
    assert (answer.model, answer.role, answer.stop_reason) == (MODEL_NAME, "assistant", "end_turn")
    details = answer.usage.output_tokens_details
    assert details is not None and 0 < details.thinking_tokens < answer.usage.output_tokens


def test_without_thinking(client: anthropic.Anthropic) -> None:
    (text,) = ask(client, "What is 27 + 15?", thinking={"type": "disabled"}).content
    assert text.type == "text" and text.text == "27 + 15 = 42."


@pytest.mark.parametrize("streamed", [False, True])
def test_the_weather_dialogue(client: anthropic.Anthropic, streamed: bool) -> None:
    def answered(messages: list[Any]) -> anthropic.types.Message:
        settings: Json = {"model": "any", "max_tokens": 200, "extra_body": GREEDY, "tools": [TOOL]}
        if not streamed:
            return client.messages.create(messages=messages, **settings)
        with client.messages.stream(messages=messages, **settings) as stream:
            return stream.get_final_message()

    messages = [user(f"What is the weather in {'Paris' if streamed else 'Rome'}?")]
    first = answered(messages)
    call = first.content[-1]
    assert first.stop_reason == "tool_use" and call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Paris" if streamed else "Rome"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "windy, 23 degrees"}
    messages += [{"role": "assistant", "content": first.content}, user([result])]
    second = answered(messages)
    text = second.content[-1]
    assert text.type == "text"
    assert text.text == f"It is windy in {call.input['city']}, 23 degrees."
    # The second turn reads the tool's result alone: all before it, the call included, is in the cache.
    n_first = n_prompt(first) + first.usage.output_tokens
    assert second.usage.cache_read_input_tokens is not None
    assert second.usage.cache_read_input_tokens >= n_first - 1
    assert 0 < second.usage.input_tokens < 60


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "Who are you?"},
        {"content": "What is the weather in Oslo?", "tools": [TOOL]},
        {"content": "Repeat after me: seven red boats", "stop_sequences": ["red"]},
        {"content": "What is 27 + 15?", "max_tokens": 5},
        {"content": "What is 27 + 15?", "thinking": {"type": "adaptive", "display": "omitted"}},
    ],
)
def test_streamed_is_whole(client: anthropic.Anthropic, fields: Json) -> None:
    whole = ask(client, **fields)
    settings: Json = {"model": "any", "max_tokens": 200, "extra_body": GREEDY, **fields}
    with client.messages.stream(messages=[user(settings.pop("content"))], **settings) as stream:
        streamed = stream.get_final_message()
    assert timeless(streamed) == timeless(whole)
    assert n_prompt(streamed) == n_prompt(whole)


def test_max_tokens_within_thinking(client: anthropic.Anthropic) -> None:
    answer = ask(client, "What is 27 + 15?", max_tokens=4)
    (block,) = answer.content
    assert block.type == "thinking" and block.thinking
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 4)


def test_a_full_context(make_server: Callable[..., RunningServer]) -> None:
    with client_of(make_server(ServerOptions(ignore_eos=True), n_ctx=256)) as client:
        answer = ask(client, "Hi", max_tokens=5000)
    assert answer.stop_reason == "model_context_window_exceeded"
    assert n_prompt(answer) + answer.usage.output_tokens == 256


def test_thinking_budget(client: anthropic.Anthropic) -> None:
    free, bounded = (
        ask(client, "What is 27 + 15?", thinking=thinking)
        for thinking in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 3})
    )
    assert [block.type for block in bounded.content] == ["thinking", "text"]
    spent = [answer.usage.output_tokens_details for answer in (bounded, free)]
    assert spent[0] and spent[1] and spent[0].thinking_tokens < spent[1].thinking_tokens


@pytest.mark.parametrize(("word", "shown"), [("red", "seven "), ("en r", "sev"), ("seven", "")])
def test_stop_sequences(client: anthropic.Anthropic, word: str, shown: str) -> None:
    answer = ask(client, "Repeat after me: seven red boats", stop_sequences=["never", word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert "".join(block.text for block in answer.content if block.type == "text") == shown


def test_a_schema_is_kept(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "colour": {"enum": ["red", "blue"]}},
        "required": ["ok", "colour"],
        "additionalProperties": False,
    }
    answer = ask(
        client,
        "Who are you?",
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    (block,) = answer.content
    assert block.type == "text"
    found = json.loads(block.text)
    assert set(found) == {"ok", "colour"} and found["colour"] in ("red", "blue")
    assert isinstance(found["ok"], bool)


def test_a_tool_is_forced(client: anthropic.Anthropic) -> None:
    answer = ask(
        client,
        "Who are you?",
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        max_tokens=400,
    )
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert [call.name for call in calls] == ["get_weather"]
    assert answer.stop_reason == "tool_use"


def test_count_tokens_is_what_the_prompt_has(client: anthropic.Anthropic) -> None:
    fields: Json = {"messages": [user("Weather in Lyon?")], "tools": [TOOL], "system": "Be brief."}
    counted = client.messages.count_tokens(model="any", **fields)
    answer = client.messages.create(model="any", max_tokens=1, **fields)
    assert counted.input_tokens == n_prompt(answer)


def test_reasoning_that_was_not_shown_keeps_the_prefix(client: anthropic.Anthropic) -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    first = ask(client, "What is 31 + 12?", thinking=thinking)
    assert first.content[0].type == "thinking" and first.content[0].thinking == ""
    messages = [user("What is 31 + 12?"), {"role": "assistant", "content": first.content}, user("Thanks!")]
    second = ask(client, messages, thinking=thinking)
    n_first = n_prompt(first) + first.usage.output_tokens
    assert (second.usage.cache_read_input_tokens or 0) >= n_first - 1


def test_message_start_tells_what_was_reused(server: RunningServer) -> None:
    body = {"model": "any", "max_tokens": 3, "messages": [user("Where is the green lamp?")], "stream": True}
    usages = []
    for _ in range(2):
        events = sse(server.post("/v1/messages", body).text)
        assert [kind for kind, _ in events][:2] == ["message_start", "content_block_start"]
        usages.append([data["message"]["usage"] for kind, data in events if kind == "message_start"][0])
        assert events[-1][0] == "message_stop"
    assert usages[0]["cache_read_input_tokens"] < usages[1]["cache_read_input_tokens"]
    assert sum(usages[0].values()) == sum(usages[1].values())


def sse(text: str) -> list[tuple[str, Json]]:
    """Names and data of server-sent events; comments are left out."""
    events = []
    for block in text.strip().split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if lines:
            name, data = lines
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [user([{"type": "image", "source": {"type": "url", "url": "x"}}])]}, "image"),
        ({"messages": [user([{"type": "document", "source": {"type": "text"}}])]}, "document"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"messages": [user("boat " * 1500)]}, "prompt is too long: "),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(server: RunningServer, fields: Json, words: str, stream: bool) -> None:
    reply = server.post(
        "/v1/messages", {"max_tokens": 5, "messages": [user("Hi")], "stream": stream, **fields}
    )
    assert (reply.status_code, reply.json()["type"]) == (400, "error")
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert words in reply.json()["error"]["message"]


def test_a_prompt_beyond_the_context_tells_both_counts(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, "boat " * 1500)
    error: Any = caught.value.body
    assert error["error"]["code"] == "context_length_exceeded"
    assert error["error"]["n_prompt_tokens"] > error["error"]["n_ctx"] == 1024


def test_paths_below_have_the_same_form_of_errors(server: RunningServer) -> None:
    reply = server.post("/v1/messages/batches", {})
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "not_found_error")


def test_a_failure_in_the_middle_is_an_error_event(make_server: Callable[..., RunningServer]) -> None:
    slow = make_server(ServerOptions(request_timeout=0.2, ignore_eos=True))
    body = {"max_tokens": 900, "messages": [user("Hi")], "stream": True}
    events = sse(slow.post("/v1/messages", body).text)
    assert events[-1][0] == "error"
    assert events[-1][1]["error"]["type"] == "timeout_error"
    reply = slow.post("/v1/messages", {**body, "stream": False})
    assert (reply.status_code, reply.json()["error"]["type"]) == (504, "timeout_error")
    with client_of(slow) as client, pytest.raises(anthropic.APIStatusError, match="timeout_error"):
        list(client.messages.create(model="any", max_tokens=900, messages=[user("Hi")], stream=True))


def test_the_key_is_asked_for(make_server: Callable[..., RunningServer]) -> None:
    locked = make_server(ServerOptions(api_keys=("secret",)))
    with client_of(locked) as client, pytest.raises(anthropic.AuthenticationError, match="API key"):
        ask(client, "Hi")
    with anthropic.Anthropic(base_url=locked.url, api_key="secret", max_retries=0) as client:
        assert ask(client, "Hi", max_tokens=1).usage.output_tokens == 1
