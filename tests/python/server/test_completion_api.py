"""/completion and /v1/completions: prompts, stop strings, characters, probabilities, settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_k3.server.routes.common import nested_fields

from tests.python.server.conftest import RunningServer
from tests.python.server.test_chat_api import TIMINGS

NATIVE, OPENAI = "/completion", "/v1/completions"


def asked(prompt: Any = "seven red", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "n_predict": 12, "temperature": 0, **fields}


def native(server: RunningServer, **fields: Any) -> dict[str, Any]:
    reply = server.post(NATIVE, asked(**fields))
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def events(server: RunningServer, path: str = NATIVE, **fields: Any) -> list[dict[str, Any]]:
    reply = server.post(path, asked(stream=True, **fields))
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.split("\n\n") if line]
    if path == OPENAI:
        assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_the_form_of_an_answer(server: RunningServer) -> None:
    answer = native(server)
    assert answer["stop"] is True and answer["stop_type"] == "limit" and answer["stopping_word"] == ""
    assert answer["tokens_predicted"] == 12 and answer["prompt"] == "seven red"
    assert answer["tokens_cached"] == answer["tokens_evaluated"] + 12
    assert answer["truncated"] is False and answer["tokens"] == []
    assert answer["model"] == "tiny-k3" and 0 <= answer["id_slot"] < 4
    assert set(answer["timings"]) == TIMINGS
    settings = answer["generation_settings"]
    assert settings["temperature"] == 0 and settings["n_predict"] == 12 and settings["seed"] >= 0
    assert server.post("/completions", asked()).json()["content"] == answer["content"]


def test_streamed_equals_whole(server: RunningServer) -> None:
    answer = native(server, return_tokens=True)
    parts = events(server)
    assert "".join(part["content"] for part in parts) == answer["content"]
    assert [token for part in parts for token in part["tokens"]] == answer["tokens"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1]["tokens_predicted"] == parts[-2]["tokens_predicted"] == 12


def test_prompts_of_every_form(server: RunningServer) -> None:
    tokens = server.post("/tokenize", {"content": "seven red"}).json()["tokens"]
    text = native(server)["content"]
    for prompt in (
        tokens,
        [*tokens[:1], server.post("/detokenize", {"tokens": tokens[1:]}).json()["content"]],
        {"prompt_string": "seven red"},
        ["seven red"],
        [tokens],
    ):
        assert native(server, prompt=prompt)["content"] == text
    several = server.post(NATIVE, asked(["seven red", "Who are"])).json()
    assert [one["index"] for one in several] == [0, 1] and several[0]["content"] == text
    both = server.post(OPENAI, asked(["seven red", tokens], n=2)).json()
    assert [one["index"] for one in both["choices"]] == [0, 1, 2, 3]
    assert {one["text"] for one in both["choices"]} == {text}
    assert both["usage"]["prompt_tokens"] == 2 * len(tokens)


@pytest.mark.parametrize("path", [NATIVE, OPENAI])
@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        True,
        "",
        [],
        {},
        {"a": 1},
        [[[1]]],
        [True],
        [1.5],
        [-1],
        [2**31],
        ["a"] * 65,
        {"prompt_string": "x", "multimodal_data": ["aa"]},
    ],
)
def test_prompts_of_no_form(server: RunningServer, path: str, prompt: Any) -> None:
    reply = server.post(path, asked(prompt))
    assert reply.status_code == 400, reply.text
    assert "prompt" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"post_sampling_probs": True},
        {"n_probs": 101},
        {"n_probs": -1},
        {"n_predict": -2},
        {"n_predict": 2**31},
        {"n_predict": True},
        {"t_max_predict_ms": "1"},
        {"grammar": "root ::= ("},
        {"grammar": 'root ::= "a"', "json_schema": {}},
        {"json_schema": {"type": "object", "not": {}}},
        {"lora": [{"id": 0, "scale": 1}]},
        {"echo": True},
        {"best_of": 2},
        {"suffix": "x"},
        {"n": 129},
        {"id_slot": 4},
        {"xtc_probability": 0.5},
        {"response_fields": "content"},
    ],
)
def test_wrong_fields(server: RunningServer, fields: dict[str, Any]) -> None:
    reply = server.post(NATIVE, asked(**fields))
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_stop_strings_across_tokens(server: RunningServer) -> None:
    text = native(server, n_predict=30)["content"]
    assert len(text) > 20
    for start in range(1, 12):
        for length in (1, 3, 7):
            stop = text[start : start + length]
            answer = native(server, n_predict=30, stop=["never said", stop])
            assert answer["content"] == text[: text.index(stop)]
            assert answer["stop_type"] == "word" and answer["stopping_word"] == stop
            parts = events(server, n_predict=30, stop=["never said", stop])
            assert "".join(part["content"] for part in parts) == answer["content"]


def test_held_back_text_comes_out_where_no_stop_follows(server: RunningServer) -> None:
    text = native(server)["content"]
    assert native(server, stop=[text[-4:] + "!"])["content"] == text
    parts = events(server, stop=[text[-4:] + "!"])
    assert "".join(part["content"] for part in parts) == text


def test_characters_are_never_cut(server: RunningServer) -> None:
    """Bytes of a character that come as single tokens are shown together, or as U+FFFD at a cut."""
    tokens = server.post("/tokenize", {"content": "\U0001f600"}).json()["tokens"]
    assert len(tokens) == 4
    forced: dict[str, Any] = {
        "n_predict": 4,
        "top_k": 0,
        "logit_bias": [[token, 100] for token in tokens],
        "temperature": 1.0,
    }
    for seed in range(20):
        parts = events(server, prompt="x", seed=seed, **forced)
        answer = native(server, prompt="x", seed=seed, **forced)
        assert "".join(part["content"] for part in parts) == answer["content"]
        for part in parts:
            part["content"].encode()


def test_probabilities_on_both(server: RunningServer) -> None:
    answer = native(server, n_probs=3)
    entries = answer["completion_probabilities"]
    assert len(entries) == 12
    for entry in entries:
        assert set(entry) == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 3 and entry["top_logprobs"][0]["id"] == entry["id"]
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
    streamed = [
        entry for part in events(server, n_probs=3) for entry in part.get("completion_probabilities", ())
    ]
    assert streamed == entries
    openai = server.post(OPENAI, asked(logprobs=3)).json()["choices"][0]["logprobs"]["content"]
    shown = {entry["id"]: entry for entry in entries}
    assert openai and all(shown[entry["id"]] in entries for entry in openai)
    assert [entry["logprob"] for entry in openai] == [e["logprob"] for e in entries if e in openai]


def test_schema_and_grammar_hold(server: RunningServer) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = native(server, json_schema=schema, n_predict=200)
    assert answer["stop_type"] == "eos" and 10 <= json.loads(answer["content"])["a"] <= 99
    grammar = 'root ::= ("yes" | "no") " indeed"'
    assert native(server, grammar=grammar)["content"] in ("yes indeed", "no indeed")
    assert native(server, grammar=grammar)["stop_type"] == "eos"
    # the grammar says where the text ends, whatever is said of end tokens
    assert native(server, grammar=grammar, ignore_eos=True)["stop_type"] == "eos"


def test_nested_schemas_with_patterns_and_long_strings(server: RunningServer) -> None:
    inner = {
        "type": "object",
        "properties": {"s": {"type": "string", "pattern": "^[a-z]+$"}},
        "required": ["s"],
    }
    schema = {"type": "object", "properties": {"o": inner}, "required": ["o"]}
    answer = native(server, json_schema=schema, n_predict=80)
    if answer["stop_type"] == "eos":
        assert json.loads(answer["content"])["o"]["s"].isalpha()
    assert answer["content"].startswith("{")
    long = {"type": "string", "maxLength": 2000}
    assert native(server, json_schema=long)["content"].startswith('"')


def test_fields_of_the_response(server: RunningServer) -> None:
    wanted = ["content", "generation_settings/n_predict", "timings/prompt_n", "nothing/here"]
    answer = native(server, response_fields=wanted)
    assert set(answer) == {"content", "n_predict", "prompt_n"} and answer["n_predict"] == 12
    assert nested_fields({"a": {"b": None}}, ["a/b", "a/b/c", "x"]) == {"b": None}


def test_end_tokens(server: RunningServer) -> None:
    prompt = server.post(
        "/apply-template", {"messages": [{"role": "user", "content": "Who are you?"}]}
    ).json()
    ended = native(server, prompt=prompt["prompt"], n_predict=200)
    assert ended["stop_type"] == "eos" and ended["tokens_predicted"] < 200
    assert "<|" not in ended["content"]
    endless = native(server, prompt=prompt["prompt"], n_predict=200, ignore_eos=True)
    assert endless["stop_type"] == "limit" and endless["tokens_predicted"] == 200


def test_an_empty_answer(server: RunningServer) -> None:
    answer = native(server, n_predict=0)
    assert answer["content"] == "" and answer["tokens_predicted"] == 0


def test_time_limit_of_the_answer(server: RunningServer) -> None:
    answer = native(server, n_predict=900, ignore_eos=True, t_max_predict_ms=1)
    assert answer["stop_type"] == "limit" and answer["tokens_predicted"] < 900


def test_the_context_ends_the_answer(server: RunningServer) -> None:
    answer = native(server, prompt=[5] * 1000, n_predict=-1, ignore_eos=True)
    assert answer["stop_type"] == "limit"
    assert answer["tokens_evaluated"] + answer["tokens_predicted"] in (1024, 1025)


def test_an_overlong_prompt(server: RunningServer) -> None:
    reply = server.post(NATIVE, asked([5] * 1024))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "exceed_context_size_error" and error["code"] == 400
    assert error["n_prompt_tokens"] == error["n_ctx"] == 1024
    assert server.post(OPENAI, asked([5] * 1024)).json()["error"]["code"] == "context_length_exceeded"
    assert server.post(NATIVE, asked([5] * 1023)).status_code == 200


def test_slots_can_be_chosen(server: RunningServer) -> None:
    for slot in (0, 3):
        assert native(server, id_slot=slot)["id_slot"] == slot


def test_without_the_cache(server: RunningServer) -> None:
    prompt = "remember this " * 20
    first = native(server, prompt=prompt)
    assert native(server, prompt=prompt)["timings"]["cache_n"] > 0
    fresh = native(server, prompt=prompt, cache_prompt=False)
    assert fresh["timings"]["cache_n"] == 0 and fresh["content"] == first["content"]


def test_samplers_that_are_left_out_do_nothing(server: RunningServer) -> None:
    settings = native(server, samplers=["top_k", "temperature"], top_p=0.1)["generation_settings"]
    assert settings["top_p"] == 1 and settings["min_p"] == 0 and settings["top_k"] == 40
    assert native(server, samplers=["top_k"], top_k=1)["generation_settings"]["temperature"] == 1


def test_openai_stream(server: RunningServer) -> None:
    whole = server.post(OPENAI, asked(max_tokens=6)).json()
    parts = events(server, OPENAI, max_tokens=6, stream_options={"include_usage": True})
    text = "".join(choice["text"] for part in parts for choice in part["choices"])
    assert text == whole["choices"][0]["text"]
    assert [c["finish_reason"] for part in parts for c in part["choices"] if c["finish_reason"]] == ["length"]
    assert parts[-1]["usage"]["completion_tokens"] == 6 and set(parts[-1]["timings"]) == TIMINGS


def test_tokens_there_and_back(server: RunningServer) -> None:
    text = "héllo <|open|> \U0001f600"
    plain = server.post("/tokenize", {"content": text, "parse_special": False}).json()["tokens"]
    special = server.post("/tokenize", {"content": text}).json()["tokens"]
    assert len(special) < len(plain)
    for tokens in (plain, special):
        assert server.post("/detokenize", {"tokens": tokens}).json()["content"] == text
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == special
    data = b"".join(
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    )
    assert data.decode() == text
    for tokens in ([-1], [2**40], ["a"], [True], "x"):
        assert server.post("/detokenize", {"tokens": tokens}).status_code == 400
