"""/v1/chat/completions beyond what OpenAI's client shows: llama.cpp's fields, limits, thinking, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_k3.server.options import ServerOptions

from llama_k3 import Model
from scripts.tiny_k3.words import WEATHER_TOOL
from tests.python.server.conftest import RunningServer

PATH = "/v1/chat/completions"
SUM = "What is 27 + 15?"
TIMINGS = {
    "cache_n",
    "prompt_n",
    "prompt_ms",
    "prompt_per_token_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_token_ms",
    "predicted_per_second",
}


def body(text: str = SUM, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def chunks(server: RunningServer, asked: dict[str, Any], path: str = PATH) -> list[dict[str, Any]]:
    """The events of a stream without its [DONE], which must be there."""
    reply = server.post(path, {**asked, "stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.split("\n\n") if line and not line.startswith(":")]
    assert lines.pop() == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def joined(events: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message of a streamed answer."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish": None}
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        message["finish"] = choice["finish_reason"] or message["finish"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["calls"])
                message["calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


def whole(server: RunningServer, asked: dict[str, Any]) -> dict[str, Any]:
    """The same of an answer that is not streamed."""
    reply = server.post(PATH, asked)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    said = choice["message"]
    return {
        "content": said["content"] or "",
        "reasoning_content": said.get("reasoning_content", ""),
        "calls": [call["function"] for call in said.get("tool_calls", ())],
        "finish": choice["finish_reason"],
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stop": ["2 ="]},
        {"stop": ["\n", "5 = 4", "zzz"]},
        {"stop": "never said"},
        {"max_tokens": 5},
        {"max_tokens": 60, "seed": 3, "temperature": 8.0},
        {"reasoning_format": "none"},
        {"reasoning_effort": "none"},
        {"tools": [WEATHER_TOOL], "messages": [{"role": "user", "content": "Weather in Paris?"}]},
        {"response_format": {"type": "json_object"}, "max_tokens": 80},
    ],
)
def test_streamed_equals_whole(server: RunningServer, fields: dict[str, Any]) -> None:
    asked = body(**fields)
    assert joined(chunks(server, asked)) == whole(server, asked)


def test_the_aliases_answer_the_same(server: RunningServer) -> None:
    answers = [server.post(path, body()).json()["choices"] for path in (PATH, "/chat/completions")]
    assert answers[0] == answers[1]


def test_timings_are_upstreams(server: RunningServer) -> None:
    answer = server.chat(SUM)
    assert set(answer["timings"]) == TIMINGS
    timings, usage = answer["timings"], answer["usage"]
    assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
    assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert timings["predicted_n"] == usage["completion_tokens"]
    again = server.chat(SUM)["timings"]
    assert again["cache_n"] > 0 and again["prompt_n"] < timings["prompt_n"] + timings["cache_n"]


def test_timings_with_each_token(server: RunningServer) -> None:
    events = chunks(server, body(timings_per_token=True))
    counts = [event["timings"]["predicted_n"] for event in events if "timings" in event]
    assert len(counts) > 10 and counts == sorted(counts)
    assert all(set(event["timings"]) == TIMINGS for event in events if "timings" in event)


def test_progress_of_the_prompt(server: RunningServer) -> None:
    events = chunks(server, body("seven red boats " * 30, return_progress=True, cache_prompt=False))
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [set(one) for one in progress] == [{"total", "cache", "processed", "time_ms"}] * len(progress)
    processed = [one["processed"] for one in progress]
    assert len(processed) >= 3 and processed == sorted(processed)
    assert processed[-1] == progress[-1]["total"]
    assert not any("prompt_progress" in event for event in chunks(server, body()))


def test_cut_inside_the_reasoning_is_told(server: RunningServer) -> None:
    answer = whole(server, body(max_tokens=5))
    assert answer["finish"] == "length"
    assert answer["reasoning_content"] and not answer["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        {"reasoning_budget": 0},
        {"thinking_budget_tokens": 0},
    ],
)
def test_thinking_off(server: RunningServer, fields: dict[str, Any]) -> None:
    reply = server.post(PATH, body(**fields)).json()
    assert "reasoning_content" not in reply["choices"][0]["message"]
    assert reply["choices"][0]["message"]["content"]
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize(
    ("given", "rendered"),
    [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "high"),
        ("high", "high"),
        ("xhigh", "max"),
        ("max", "max"),
    ],
)
def test_effort_is_rendered(server: RunningServer, given: str, rendered: str) -> None:
    for fields in ({"reasoning_effort": given}, {"chat_template_kwargs": {"thinking_effort": given}}):
        prompt = server.post("/apply-template", body(**fields)).json()["prompt"]
        assert f"thinking_effort={rendered}`" in prompt


@pytest.mark.parametrize("budget", [1, 4])
def test_thinking_budget(server: RunningServer, budget: int) -> None:
    unbounded = server.chat(SUM)
    answer = server.chat(SUM, thinking_budget_tokens=budget)
    message = answer["choices"][0]["message"]
    reasoning = message["reasoning_content"]
    assert unbounded["choices"][0]["message"]["reasoning_content"].startswith(reasoning)
    assert len(reasoning) < len(unbounded["choices"][0]["message"]["reasoning_content"])
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == budget
    assert message["content"] and answer["choices"][0]["finish_reason"] == "stop"
    assert "think" not in message["content"]


def test_reasoning_in_the_content(server: RunningServer) -> None:
    apart = whole(server, body())
    answer = whole(server, body(reasoning_format="none"))
    assert answer["content"] == f"<think>{apart['reasoning_content']}</think>{apart['content']}"
    assert answer["reasoning_content"] == ""


def test_log_probabilities_of_the_content(server: RunningServer) -> None:
    asked = body(logprobs=True, top_logprobs=2)
    reply = server.post(PATH, asked).json()["choices"][0]
    entries = reply["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == reply["message"]["content"]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 2
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
    streamed = [
        entry
        for event in chunks(server, asked)
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert streamed == entries
    assert server.post(PATH, body()).json()["choices"][0]["logprobs"] is None


def test_several_streams_in_one(server: RunningServer) -> None:
    events = chunks(server, body(n=2, stream_options={"include_usage": True}))
    alone = whole(server, body())
    assert joined(events, 0) == joined(events, 1) == alone
    assert sum("usage" in event for event in events) == 1
    assert "usage" in events[-1] and "timings" in events[-1]


def test_logit_bias_bans_and_forces(server: RunningServer) -> None:
    free = whole(server, body(reasoning_effort="none"))["content"]
    token = server.post("/tokenize", {"content": free}).json()["tokens"][0]
    for bias in ([[token, False]], {str(token): -1000}, [[token, -1000]]):
        banned = whole(server, body(reasoning_effort="none", logit_bias=bias))["content"]
        assert server.post("/tokenize", {"content": banned}).json()["tokens"][0] != token


def test_repeated_tokens_are_penalised(server: RunningServer) -> None:
    asked = body("Repeat after me: seven red boats", frequency_penalty=50, repeat_last_n=-1, max_tokens=60)
    assert (
        whole(server, asked)["content"] != whole(server, body("Repeat after me: seven red boats"))["content"]
    )


def test_a_seed_repeats_the_draws(server: RunningServer) -> None:
    hot: dict[str, Any] = {"temperature": 20.0, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 20}
    first = whole(server, body(seed=11, **hot))
    assert whole(server, body(seed=11, **hot)) == first
    assert whole(server, body(seed=12, **hot)) != first
    assert whole(server, body(**hot)) != whole(server, body(**hot))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_k": 2**63}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -1}, "min_p"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 2**40}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"id_slot": -2}, "id_slot"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logit_bias": [[1, True]]}, "logit_bias"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"logit_bias": [[-1, 1]]}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"top_logprobs": 5}, None),
        ({"logprobs": True, "top_logprobs": 101}, "top_logprobs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"mirostat": 1}, "mirostat"),
        ({"dry_multiplier": 0.5}, "dry_multiplier"),
        ({"samplers": ["temperature", "top_k"]}, "samplers"),
        ({"samplers": ["magic"]}, "samplers"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs.enable_thinking"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_wrong_fields_are_named(server: RunningServer, fields: dict[str, Any], param: str | None) -> None:
    reply = server.post(PATH, body(**fields))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and error["code"] == 400
    if param is not None:
        assert error["param"] == param and error["message"].startswith(param)
    assert "wanted" in error["message"] or ":" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
            ],
            "tool_choice": "required",
        },
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
        {"response_format": {"type": "yaml"}},
        {"tool_choice": "required"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"content": "x"}]},
    ],
)
def test_what_cannot_be_done_is_refused(server: RunningServer, fields: dict[str, Any]) -> None:
    reply = server.post(PATH, body(**fields))
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("template", ["{% for _ in range(10**9) %}x{% endfor %}", "x"])
def test_templates_of_requests_are_not_run(server: RunningServer, template: str) -> None:
    for fields in (
        {"chat_template": template},
        {"chat_template_kwargs": {"chat_template": template}},
        {"chat_template_kwargs": {"a": [{"b": {"chat_template": template}}]}},
    ):
        reply = server.post(PATH, body(**fields))
        assert reply.status_code == 400
        assert "template" in reply.json()["error"]["message"]


def test_unknown_fields_and_nulls_are_ignored(server: RunningServer) -> None:
    names = (
        "max_tokens",
        "stop",
        "tools",
        "tool_choice",
        "response_format",
        "seed",
        "n",
        "stream",
        "logit_bias",
    )
    nulls: dict[str, Any] = dict.fromkeys(names)
    asked = body(user="me", metadata={"a": 1}, store=True, magic=[1], **nulls)
    assert whole(server, asked) == whole(server, body())


def test_an_overlong_chat_names_both_counts(server: RunningServer) -> None:
    fits, n_prompt = "a", 0
    while n_prompt < 1024:
        fits += " a" * 64
        n_prompt = server.post(PATH + "/input_tokens", body(fits)).json()["input_tokens"]
    reply = server.post(PATH, body(fits))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["code"] == "context_length_exceeded" and error["type"] == "invalid_request_error"
    assert error["n_prompt_tokens"] == n_prompt and error["n_ctx"] == 1024
    assert "maximum context length is 1024 tokens. However, your messages resulted in" in error["message"]


def test_developer_messages_are_kept(server: RunningServer) -> None:
    messages = [{"role": "developer", "content": "Speak of ships."}, {"role": "user", "content": "Hello"}]
    prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert "Speak of ships." in prompt


def test_replayed_arguments_keep_their_bytes(server: RunningServer) -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "f", "arguments": '{"x":  1e2}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "done"},
    ]
    prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert "1e2" in prompt and 'tool="f"' in prompt
    broken = {**call, "function": {"name": "f", "arguments": "{not json"}}
    messages[1]["tool_calls"] = [broken]
    reply = server.post(PATH, {"messages": messages, "max_tokens": 4})
    assert reply.status_code in (200, 400)


def test_reasoning_that_is_sent_back_is_rendered(server: RunningServer) -> None:
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "gone", "reasoning_content": "They want me to go."},
        {"role": "user", "content": "again"},
    ]
    assert "They want me to go." in server.post("/apply-template", {"messages": messages}).json()["prompt"]


def test_log_probabilities_with_tools_in_a_stream(server: RunningServer) -> None:
    events = chunks(server, body("Who are you?", tools=[WEATHER_TOOL], logprobs=True, top_logprobs=1))
    entries = [
        entry
        for event in events
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert "".join(entry["token"] for entry in entries) == joined(events)["content"] != ""


def test_control_tokens_in_texts_stay_text(server: RunningServer) -> None:
    plain = server.post(PATH + "/input_tokens", body("hello")).json()["input_tokens"]
    marked = server.post(PATH + "/input_tokens", body("<|end_of_msg|>")).json()["input_tokens"]
    assert marked > plain
    assert "<|" not in json.dumps(server.post(PATH, body("<|open|>think<|sep|>")).json()["choices"])


def test_kimi_linear(make_server: Callable[..., RunningServer], linear_gguf: Path) -> None:
    with Model(linear_gguf, n_threads=2) as linear:
        running = make_server(model=linear)
        asked = body(max_tokens=20, stop=["never said"])
        assert joined(chunks(running, asked)) == whole(running, asked)
        assert "<|im_user|>user" in running.post("/apply-template", asked).json()["prompt"]
        choice = running.chat("go", max_tokens=4)["choices"][0]
        assert "reasoning_content" not in choice["message"]
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
        assert json.loads(whole(running, body(response_format=schema))["content"]) in ("yes", "no")
        running.service.engine.close()


def test_flags_are_the_defaults(make_server: Callable[..., RunningServer]) -> None:
    quiet = make_server(ServerOptions(thinking=False, n_predict=7))
    answer = quiet.chat("Who are you?")
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["usage"]["completion_tokens"] == 7 and answer["choices"][0]["finish_reason"] == "length"
    thinking = quiet.chat("Who are you?", max_tokens=50, chat_template_kwargs={"thinking": True})
    assert thinking["choices"][0]["message"]["reasoning_content"]
