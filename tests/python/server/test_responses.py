"""OpenAI's own client against /v1/responses: what its users do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pytest
from llama_k3.server.options import ServerOptions
from openai.types.responses import Response
from pydantic import BaseModel

from scripts.tiny_k3.words import WEATHER_TOOL

from .conftest import MODEL_NAME, RunningServer
from .test_anthropic import sse

Json = dict[str, Any]

_FUNCTION: Any = WEATHER_TOOL["function"]
TOOL: Any = {"type": "function", **_FUNCTION}


class Verdict(BaseModel):
    ok: bool
    colour: Literal["red", "blue"]


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, given: Any, **fields: Any) -> Response:
    answer = client.responses.create(input=given, **{"model": "any", "temperature": 0, **fields})
    assert isinstance(answer, Response)
    return answer


def reasoning(response: Response) -> str:
    items = [item for item in response.output if item.type == "reasoning"]
    return "".join(part.text for item in items for part in item.content or ())


def timeless(response: Response) -> Json:
    """Without ids and times, and without what tells how much was reused."""
    found: Json = json.loads(response.to_json().replace(response.id.removeprefix("resp_"), ""))
    del found["created_at"], found["completed_at"], found["usage"]["input_tokens_details"]
    for item in found["output"]:
        for part in (item, *(item.get("content") or ())):
            part.pop("parsed", None)
            part.pop("parsed_arguments", None)
    return found


def test_chat(client: openai.OpenAI) -> None:
    answer = ask(client, "What is 27 + 15?", instructions="You are a helpful assistant.", metadata={"a": "b"})
    assert (answer.status, answer.model, answer.metadata) == ("completed", MODEL_NAME, {"a": "b"})
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output_text == "27 + 15 = 42."
    assert reasoning(answer)
    usage = answer.usage
    assert usage is not None and usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens


def test_without_reasoning(client: openai.OpenAI) -> None:
    answer = ask(client, "What is 27 + 15?", reasoning={"effort": "none"})
    assert [item.type for item in answer.output] == ["message"]
    assert answer.output_text == "27 + 15 = 42."


@pytest.mark.parametrize("streamed", [False, True])
def test_the_weather_dialogue(client: openai.OpenAI, streamed: bool) -> None:
    def answered(items: list[Any]) -> Response:
        settings: Json = {"model": "any", "temperature": 0, "tools": [TOOL], "store": False}
        if not streamed:
            return client.responses.create(input=items, **settings)
        with client.responses.stream(input=items, **settings) as stream:
            return stream.get_final_response()

    city = "Madrid" if streamed else "Vienna"
    items: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    first = answered(items)
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": city}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "windy, 23 degrees"}
    items += [*(item.to_dict() for item in first.output), result]
    second = answered(items)
    assert second.output_text == f"It is windy in {city}, 23 degrees."
    # The second turn reads the function's output alone: all before it, the call included, is in the cache.
    assert first.usage is not None and second.usage is not None
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached >= first.usage.total_tokens - 1
    assert second.usage.input_tokens - cached < 60


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "Who are you?"},
        {"input": "What is the weather in Oslo?", "tools": [TOOL]},
        {"input": "What is 27 + 15?", "max_output_tokens": 5},
        {"input": "What is 27 + 15?", "include": ["reasoning.encrypted_content"]},
    ],
)
def test_streamed_is_whole(client: openai.OpenAI, fields: Json) -> None:
    settings: Json = {"model": "any", "temperature": 0, **fields}
    whole = client.responses.create(**settings)
    last: Any = list(client.responses.create(**settings, stream=True))[-1]
    assert timeless(last.response) == timeless(whole)


def test_a_limit_within_reasoning(client: openai.OpenAI) -> None:
    answer = ask(client, "What is 27 + 15?", max_output_tokens=4)
    assert (answer.status, answer.output_text) == ("incomplete", "")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert reasoning(answer)
    assert answer.usage is not None and answer.usage.output_tokens == 4


def test_structured_output(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model="any", input="Who are you?", text_format=Verdict, temperature=0, reasoning={"effort": "none"}
    )
    assert isinstance(answer.output_parsed, Verdict)
    assert answer.text is not None and answer.text.format is not None
    assert answer.text.format.type == "json_schema"


def test_a_tool_is_forced(client: openai.OpenAI) -> None:
    answer = ask(
        client,
        "Who are you?",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "get_weather"},
        parallel_tool_calls=False,
        max_output_tokens=400,
    )
    assert [item.name for item in answer.output if item.type == "function_call"] == ["get_weather"]


def test_sealed_reasoning_keeps_the_prefix(client: openai.OpenAI) -> None:
    first = ask(client, "What is 31 + 14?", include=["reasoning.encrypted_content"])
    items: list[Any] = [item.to_dict() for item in first.output]
    assert items[0]["encrypted_content"]
    items[0]["content"] = []
    second = ask(
        client, [{"role": "user", "content": "What is 31 + 14?"}, *items, {"role": "user", "content": "Hi"}]
    )
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, None),
        ({"max_output_tokens": 2**31}, "max_output_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(client: openai.OpenAI, fields: Json, param: str | None, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "any", "input": "Hi", "stream": stream, **fields})
    assert param is None or caught.value.param == param
    assert param is None or param in str(caught.value)


def test_a_prompt_beyond_the_context_tells_both_counts(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "boat " * 1500)
    assert caught.value.code == "context_length_exceeded"
    error: Any = caught.value.body
    assert error["n_prompt_tokens"] > error["n_ctx"] == 1024


def test_a_failure_in_the_middle_is_a_failed_response(make_server: Callable[..., RunningServer]) -> None:
    slow = make_server(ServerOptions(request_timeout=0.2, ignore_eos=True))
    events = sse(slow.post("/v1/responses", {"input": "Hi", "stream": True}).text)
    assert [kind for kind, _ in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1][0] == "response.failed"
    response = Response.model_validate(events[-1][1]["response"])
    assert response.status == "failed" and response.error is not None
    assert slow.post("/v1/responses", {"input": "Hi"}).status_code == 504
