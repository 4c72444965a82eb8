"""Properties of XTML and K2 over random messages and answers: round trips, cuts, and text that stays text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_k3.chat import K2Chat, K3Chat
from llama_k3.messages import read_messages
from llama_k3.xtml.arguments import split_object

from llama_k3 import Tokenizer, k2, xtml
from scripts.fuzz_xtml import check_arguments, check_tokens, read, run_case, sent_back
from tests.python.vocabulary import small_tokenizer

K2_TOKENIZER = small_tokenizer(
    [],
    [
        *("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
        *(k2.SECTION_BEGIN, k2.SECTION_END, k2.CALL_BEGIN, k2.ARGUMENTS_BEGIN, k2.CALL_END),
    ],
    [],
)
FRAGMENTS = [
    *xtml.MARKERS,
    *K2_TOKENIZER.special_ids,
    "<|",
    "|>",
    "<|op",
    "en|>",
    '"',
    "&",
    "&quot;",
    "\\",
    "\n",
]
FRAGMENTS += ["think", "message", 'message role="system"', "[EOS]", "漢", "🙂", " "]


def cases(count: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


pieces = st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6))
texts = st.lists(pieces, max_size=4).map("".join).filter(lambda text: text == _utf8(text))
any_texts = st.lists(st.one_of(pieces, st.just("\ud800"), st.just("\udfff")), max_size=4).map("".join)
names = texts.filter(bool)
space = st.sampled_from(["", " ", "\n  ", "\t"])


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


@st.composite
def numbers(draw: st.DrawFn) -> str:
    digits = draw(st.sampled_from(["0", "-0", "7", "123456789012345678901234567890", "-42"]))
    return digits + draw(st.sampled_from(["", ".0", ".50", "e2", "E+07", ".1e-3"]))


@st.composite
def json_strings(draw: st.DrawFn) -> str:
    return json.dumps(draw(texts), ensure_ascii=draw(st.booleans()))


json_values = st.recursive(
    st.one_of(numbers(), json_strings(), st.sampled_from(["true", "false", "null"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + " ,".join(items) + "]"),
        st.lists(st.tuples(json_strings(), inner), max_size=2).map(
            lambda members: "{" + ",".join(f"{key}: {value}" for key, value in members) + " }"
        ),
    ),
    max_leaves=5,
)


@st.composite
def json_objects(draw: st.DrawFn) -> str:
    """The text of a JSON object in any layout, with keys that may come twice."""
    members = [
        f"{draw(space)}{draw(json_strings())}{draw(space)}:{draw(space)}{draw(json_values)}{draw(space)}"
        for _ in range(draw(st.integers(0, 3)))
    ]
    return draw(space) + "{" + (",".join(members) or draw(space)) + "}" + draw(space)


@st.composite
def answers(draw: st.DrawFn, reasoning: bool = True) -> dict[str, Any]:
    calls = st.builds(
        lambda name, arguments: {"function": {"name": name, "arguments": arguments}}, names, json_objects()
    )
    return {
        "role": "assistant",
        "reasoning_content": draw(texts) if reasoning else "",
        "content": draw(texts),
        "tool_calls": draw(st.lists(calls, max_size=3)),
    }


def answer_ids(message: dict[str, Any], tokenizer: Tokenizer, thinking: bool) -> list[int]:
    """What the model writes to say this: the message without its opening."""
    segments = xtml.render([message], thinking=thinking, add_generation_prompt=False)
    ids = xtml.encode(segments, tokenizer)
    opening = xtml.encode(xtml.preamble(None, thinking) + xtml.generation_prompt(thinking), tokenizer)
    assert ids[: len(opening)] == opening
    return ids[len(opening) :]


@cases(150)
@given(answers(), st.booleans())
def test_an_answer_comes_back_as_it_was(tokenizer: Tokenizer, answer: dict[str, Any], thinking: bool) -> None:
    """Rendered, tokenised, parsed: the same message; sent back by a client: the same tokens."""
    ids = answer_ids(answer, tokenizer, thinking)
    reader = K3Chat().reader(tokenizer, K3Chat().opened(thinking))
    for token in ids:
        reader.feed(token)
    message = reader.close()
    assert message.content == answer["content"]
    assert message.reasoning == (answer["reasoning_content"] if thinking else "")
    assert answer_ids(sent_back(message), tokenizer, thinking) == ids
    for number, (call, given_call) in enumerate(
        zip(message.tool_calls, answer["tool_calls"], strict=True), 1
    ):
        function = given_call["function"]
        assert (call.name, call.index) == (function["name"], number)
        check_arguments(function["arguments"], call.arguments)


@cases(100)
@given(answers(reasoning=False))
def test_a_k2_answer_comes_back_as_it_was(answer: dict[str, Any]) -> None:
    for call in answer["tool_calls"]:
        function = call["function"]
        function["name"] = "".join(c for c in function["name"].strip() if c not in ":{").strip() or "f"
        function["name"] = function["name"].removeprefix("functions.")
    segments = k2.render(read_messages([answer]), add_generation_prompt=False)
    ids = xtml.encode(segments, K2_TOKENIZER)[len(xtml.encode(k2.generation_prompt(), K2_TOKENIZER)) :]
    reader = K2Chat().reader(K2_TOKENIZER, None)
    for token in ids:
        reader.feed(token)
    message = reader.close()
    assert message.content == answer["content"]
    wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in answer["tool_calls"]]
    assert [(call.name, call.arguments) for call in message.tool_calls] == wanted
    again = k2.render(read_messages([sent_back(message)]), add_generation_prompt=False)
    assert again == segments


@cases(200)
@given(json_objects())
def test_arguments_keep_their_bytes(text: str) -> None:
    """Each value is a slice of the text or a string's content; nothing of it is computed."""
    members = split_object(text)
    assert members is not None
    decode = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str).decode
    pairs = decode(text)
    assert [member.key for member in members] == [key for key, _ in pairs]
    for member, (_, value) in zip(members, pairs, strict=True):
        if member.kind == "string":
            assert member.value == value
        else:
            assert member.value in text
            assert decode(member.value) == value


@cases(150)
@given(st.lists(any_texts, min_size=12, max_size=12))
def test_text_never_becomes_a_control_token(tokenizer: Tokenizer, values: list[str]) -> None:
    def controls(texts: list[str]) -> list[int]:
        name, tool, key, value, raw, schema, part, other, reasoning, result, user, system = (
            text or "x" for text in texts
        )
        declared = {"type": "function", "function": {"name": tool, "parameters": {key: value}}}
        calls = [
            {"id": "1", "function": {"name": tool, "arguments": {key: value, "o": {key: [value]}}}},
            {"id": "2", "function": {"name": name, "arguments": "#" + raw}},
        ]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system, "name": name},
            {"role": "user", "content": [{"type": "text", "text": part}, {"type": "text", "text": other}]},
            {"role": "assistant", "reasoning_content": reasoning, "content": user, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "2", "content": result},
            {"role": "tool", "name": name, "content": raw},
            {"role": "system", "tools": [declared]},
        ]
        response_format = {"type": "json_schema", "json_schema": {"schema": {schema: value}}}
        segments = xtml.render(messages, [declared], response_format=response_format)
        return [token for token in xtml.encode(segments, tokenizer) if tokenizer.special_name(token)]

    assert controls(values) == controls(["x"] * 12)


@pytest.mark.parametrize("start", range(0, 2500, 500))
def test_random_and_broken_answers(tokenizer: Tokenizer, start: int) -> None:
    """Five answers each, of XTML and K2, in several cuts: 12,500 in all; see scripts/fuzz_xtml.py."""
    for seed in range(start, start + 500):
        run_case(seed, tokenizer)


@cases(150)
@given(st.data())
def test_any_tokens_at_all(tokenizer: Tokenizer, data: st.DataObject) -> None:
    special = st.sampled_from(list(tokenizer.special_ids.values())[:8])
    tokens = data.draw(st.lists(st.one_of(special, st.integers(0, len(tokenizer) - 1)), max_size=50))
    check_tokens(K3Chat().reader(tokenizer, data.draw(st.sampled_from(["think", "response", None]))), tokens)
    check_tokens(K2Chat().reader(K2_TOKENIZER, None), [token % len(K2_TOKENIZER) for token in tokens])


@pytest.mark.parametrize("seed", range(5))
def test_random_deltas_of_one_character(seed: int) -> None:
    """The finest cut gives the whole answer as well."""
    draw = random.Random(seed)
    text = "".join(draw.choice(FRAGMENTS) for _ in range(200))
    whole = xtml.parse(text, "think")
    assert read(xtml.StreamParser("think"), list(text))[0] == whole
