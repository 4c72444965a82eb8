"""OpenAI's own client against the server: what its users do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from llama_k3.server.options import ServerOptions
from pydantic import BaseModel

from scripts.tiny_k3.words import WEATHER_TOOL
from tests.python.server.conftest import MODEL_NAME, RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]
    assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME
    with pytest.raises(openai.NotFoundError, match="gpt"):
        client.models.retrieve("gpt")


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=user("What is 27 + 15?"),
        temperature=0,
    )
    choice = answer.choices[0]
    assert choice.message.content == "27 + 15 = 42."
    assert choice.message.reasoning_content
    assert choice.finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    details = answer.usage.completion_tokens_details
    assert details is not None and 0 < (details.reasoning_tokens or 0) < answer.usage.completion_tokens


def test_streamed_chat_equals_the_whole_one(client: Any, server: RunningServer) -> None:
    whole = server.chat("Who are you?")
    chunks = list(
        client.chat.completions.create(
            model="any",
            messages=user("Who are you?"),
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    message = whole["choices"][0]["message"]
    assert "".join(delta.content or "" for delta in deltas) == message["content"]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == message["reasoning_content"]
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["stop"]
    usage = chunks[-1].usage
    assert not chunks[-1].choices and usage is not None
    assert usage.completion_tokens == whole["usage"]["completion_tokens"]
    timings = chunks[-1].timings
    assert timings["predicted_n"] == usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_the_weather_dialogue(client: Any, streamed: bool) -> None:
    messages = user("What is the weather in Paris?")
    kwargs: dict[str, Any] = {"model": "any", "tools": [WEATHER_TOOL], "temperature": 0}
    if streamed:
        with client.chat.completions.stream(messages=messages, **kwargs) as stream:
            answer: Any = stream.get_final_completion()
    else:
        answer = client.chat.completions.create(messages=messages, **kwargs)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather" and call.id
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [
        {
            "role": "assistant",
            "content": choice.message.content,
            "reasoning_content": choice.message.reasoning_content,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "rainy, 14 degrees"},
    ]
    final = client.chat.completions.create(messages=messages, **kwargs)
    content = final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"
    assert content and "14" in content and "rainy" in content
    cached = final.usage.prompt_tokens_details.cached_tokens
    assert cached > 0.5 * final.usage.prompt_tokens


class Sum(BaseModel):
    result: int
    exact: bool


def test_structured_output(client: Any) -> None:
    answer = client.chat.completions.parse(
        model="any",
        messages=user("What is 27 + 15?"),
        response_format=Sum,
        temperature=0,
        max_tokens=400,
    )
    assert answer.choices[0].finish_reason == "stop"
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Sum)


def test_completions_with_log_probabilities(client: Any) -> None:
    answer = client.completions.create(
        model="any", prompt="seven red", max_tokens=8, temperature=0, logprobs=3
    )
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.token_logprobs and logprobs.top_logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs)
    assert all(1 <= len(top) <= 3 for top in logprobs.top_logprobs)
    # Greedy: the token taken is the likeliest one.
    for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert value == max(top.values())
    chunks = client.completions.create(
        model="any", prompt="seven red", max_tokens=8, temperature=0, logprobs=3, stream=True
    )
    streamed = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(part.text for part in streamed) == choice.text
    parts = [part.logprobs for part in streamed if part.logprobs is not None]
    assert [token for part in parts for token in part.tokens or []] == logprobs.tokens
    assert [value for part in parts for value in part.token_logprobs or []] == logprobs.token_logprobs
    assert [at for part in parts for at in part.text_offset or []] == logprobs.text_offset


def test_several_answers(client: Any) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="any",
            messages=user("Who are you?"),
            n=3,
            seed=seed,
            temperature=2,
            max_tokens=30,
            extra_body={"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 20},
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage is not None and answer.usage.completion_tokens > 30
        return [choice.message.reasoning_content for choice in answer.choices]

    first = ask(7)
    assert len(set(first)) == 3
    assert ask(7) == first


def test_errors_become_the_clients_classes(client: Any, server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="any", messages=user("x"), temperature=-1)
    assert wrong.value.param == "temperature" and wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="any", messages=user("x " * 2000))
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 1024 tokens" in long.value.message
    with pytest.raises(openai.InternalServerError, match="embeddings"):
        client.embeddings.create(model="any", input="x")


def test_a_wrong_key(make_server: Any) -> None:
    url = make_server(ServerOptions(api_keys=("right",))).url + "/v1"
    with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.models.list()
        assert refused.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=url, api_key="right", max_retries=0) as friend:
        assert friend.models.list().data
