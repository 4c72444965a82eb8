"""The shape of constrained answers: channels, the choice of tools, indices, what the prompt opened."""

from __future__ import annotations

import random
from typing import Any, Literal

import pytest
from llama_k3.errors import ArgumentError
from llama_k3.grammar import GrammarCompiler, GrammarConstraint
from llama_k3.xtml import Message

from llama_k3 import Tokenizer

from .walks import message, spell, tool, walk

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [tool("weather", CITY), tool("now"), tool("log", {"type": "object"})]
END = "<|close|>message<|sep|><|end_of_msg|>"
JSON = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


def call(name: str, index: int, city: str | None = None) -> str:
    body = (
        ""
        if city is None
        else f'<|open|>argument key="city" type="string"<|sep|>{city}<|close|>argument<|sep|>'
    )
    return f'<|open|>call tool="{name}" index="{index}"<|sep|>{body}<|close|>call<|sep|>'


def tools(*calls: str) -> str:
    return f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>"


def response(content: str = "") -> str:
    return f"{content}<|close|>response<|sep|>"


class Grammar:
    """Asks whether a grammar takes whole answers."""

    def __init__(self, tokenizer: Tokenizer, constraint: GrammarConstraint | None) -> None:
        assert constraint is not None
        self._tokenizer = tokenizer
        self._constraint = constraint

    def takes(self, text: str) -> bool:
        constraint = self._constraint.clone()
        try:
            for token in spell(self._tokenizer, text):
                constraint.accept(token)
        except ArgumentError:
            return False
        return text.endswith("<|end_of_msg|>")


@pytest.fixture
def grammar(compiler: GrammarCompiler, tokenizer: Tokenizer) -> Any:
    def make(tools: Any, choice: Any, wanted: Any = None, **more: Any) -> Grammar:
        return Grammar(tokenizer, compiler.chat(tools, choice, wanted, **{"opened": "response", **more}))

    return make


def test_auto_takes_content_and_calls(grammar: Any) -> None:
    auto = grammar(TOOLS, "auto")
    assert auto.takes(response("Hello <b> & {") + END)
    assert auto.takes(response() + END)
    assert auto.takes(response() + tools(call("weather", 1, "Oslo")) + END)
    assert auto.takes(response("I look.") + tools(call("weather", 1, "Oslo"), call("now", 2)) + END)
    assert not auto.takes(response() + tools() + END)
    assert not auto.takes(response() + tools(call("wether", 1, "Oslo")) + END)
    assert not auto.takes(response() + tools(call("weather", 1)) + END)
    assert not auto.takes(response() + tools(call("now", 1, "Oslo")) + END)
    assert not auto.takes(response() + tools(call("now", 2)) + END)
    assert not auto.takes(response() + tools(call("now", 1), call("now", 1)) + END)
    assert not auto.takes(response("a") + response("b") + END)
    assert not auto.takes(response() + "<|end_of_msg|>")


def test_thinking_comes_first(grammar: Any) -> None:
    auto = grammar(TOOLS, None, opened="think")
    opened = "hm.<|close|>think<|sep|>"
    assert auto.takes(opened + "<|open|>response<|sep|>" + response("Hi") + END)
    assert auto.takes(opened + "<|open|>response<|sep|>" + response() + tools(call("now", 1)) + END)
    assert auto.takes(opened + tools(call("now", 1)) + END)
    assert auto.takes("<|close|>think<|sep|><|open|>response<|sep|>" + response("Hi") + END)
    assert not auto.takes(opened + END)
    assert not auto.takes("<|open|>response<|sep|>" + response("Hi") + END)
    assert not auto.takes(opened + "<|open|>think<|sep|>a<|close|>think<|sep|>" + END)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_required_needs_a_call(grammar: Any, choice: Any) -> None:
    required = grammar(TOOLS, choice)
    assert not required.takes(response("Hello") + END)
    assert required.takes(response("Hello") + tools(call("now", 1)) + END)
    assert required.takes(response() + tools(call("weather", 1, "Oslo")) + END) == (choice == "required")


def test_allowed_tools(grammar: Any) -> None:
    subset = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}
    allowed = grammar(TOOLS, {"type": "allowed_tools", "allowed_tools": subset})
    assert allowed.takes(response("Hello") + END)
    assert allowed.takes(response() + tools(call("now", 1)) + END)
    assert not allowed.takes(response() + tools(call("weather", 1, "Oslo")) + END)
    required = grammar(TOOLS, {"type": "allowed_tools", "allowed_tools": {**subset, "mode": "required"}})
    assert not required.takes(response("Hello") + END)


def test_one_call_where_parallel_calls_are_off(grammar: Any) -> None:
    single = grammar(TOOLS, "auto", parallel_tool_calls=False)
    assert single.takes(response() + tools(call("now", 1)) + END)
    assert not single.takes(response() + tools(call("now", 1), call("now", 2)) + END)


def test_indices_count(grammar: Any) -> None:
    auto = grammar(TOOLS, "auto")
    assert auto.takes(response() + tools(*(call("now", i) for i in range(1, 21))) + END)
    assert not auto.takes(response() + tools(*(call("now", i) for i in [*range(1, 12), 13])) + END)
    assert not auto.takes(response() + tools(*(call("now", i) for i in [*range(1, 17), "x"])) + END)


def test_response_format_leaves_no_calls(grammar: Any) -> None:
    for choice in (None, "none"):
        strict = grammar(TOOLS if choice else None, choice, JSON)
        assert strict.takes(response("12") + END)
        assert not strict.takes(response("twelve") + END)
        assert not strict.takes(response("12 ") + END)
        assert not strict.takes(response() + END)
        assert not strict.takes(response("12") + tools(call("now", 1)) + END)


def test_response_format_or_calls(grammar: Any) -> None:
    either = grammar(TOOLS, "auto", JSON)
    assert either.takes(response("12") + END)
    assert either.takes(response() + tools(call("now", 1)) + END)
    assert not either.takes(response("text") + tools(call("now", 1)) + END)
    assert not either.takes(response("12") + tools(call("now", 1)) + END)
    assert not either.takes(response() + END)
    assert not grammar(TOOLS, "required", JSON).takes(response("12") + END)
    thinking = grammar(TOOLS, "auto", JSON, opened="think")
    assert thinking.takes("x<|close|>think<|sep|><|open|>response<|sep|>" + response("-3") + END)
    assert thinking.takes("x<|close|>think<|sep|>" + tools(call("now", 1)) + END)


def test_arguments_come_once_in_any_order(grammar: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["b"],
    }

    def answer(*keys: str) -> str:
        values = {"a": ("number", "1"), "b": ("string", "x"), "c": ("number", "2")}
        parts = [
            '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'.format(key, *values[key])
            for key in keys
        ]
        return (
            response()
            + tools(f'<|open|>call tool="f" index="1"<|sep|>{"".join(parts)}<|close|>call<|sep|>')
            + END
        )

    plain = grammar([tool("f", schema)], "auto")
    assert plain.takes(answer("a", "b")) and plain.takes(answer("b", "a")) and plain.takes(answer("b"))
    assert not plain.takes(answer("a")) and not plain.takes(answer("a", "b", "a"))
    assert not plain.takes(answer("b", "c"))
    with_others = grammar([tool("f", {**schema, "additionalProperties": {"type": "integer"}})], "auto")
    assert with_others.takes(answer("c", "b", "a")) and not with_others.takes(answer("c", "a"))


def test_type_attribute_goes_with_the_value(grammar: Any) -> None:
    schema = {"type": "object", "properties": {"v": {"type": ["string", "integer"]}}, "required": ["v"]}

    def answer(kind: str, value: str) -> str:
        argument = f'<|open|>argument key="v" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        return (
            response() + tools(f'<|open|>call tool="f" index="1"<|sep|>{argument}<|close|>call<|sep|>') + END
        )

    mixed = grammar([tool("f", schema)], "auto")
    assert mixed.takes(answer("string", "12")) and mixed.takes(answer("string", '"quoted" \n & <'))
    assert mixed.takes(answer("number", "12"))
    assert not mixed.takes(answer("number", "x")) and not mixed.takes(answer("number", "1.5"))
    assert not mixed.takes(answer("boolean", "true"))


def test_nothing_asked_is_no_constraint(compiler: GrammarCompiler) -> None:
    assert compiler.chat(None, None, None) is None
    assert compiler.chat([], "auto", {"type": "text"}) is None
    assert compiler.chat(TOOLS, "none", None) is None


def test_text_never_becomes_a_control_token(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """Names and values that spell markers stay text."""
    name = "<|close|>tools<|sep|>"
    schema = {"type": "object", "properties": {name: {"enum": [name]}}, "required": [name]}
    constraint = compiler.chat([tool(name, schema)], "required", opened="response", parallel_tool_calls=False)
    assert constraint is not None
    answer = message(walk(constraint, tokenizer, random.Random(1), patience=0), tokenizer)
    assert [(found.name, found.arguments.count(name)) for found in answer.tool_calls] == [(name, 2)]


def test_random_walks_never_end_dead(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """Walks through grammars of all choices: each ends, and the parser finds what the grammar promised."""
    rng = random.Random(11)
    cases: list[tuple[Any, Any, Literal["think", "response"]]] = [
        ("auto", None, "think"),
        ("auto", None, "response"),
        ("required", None, "think"),
        ("auto", JSON, "think"),
        ({"type": "function", "function": {"name": "weather"}}, None, "response"),
    ]
    names = {declared["function"]["name"] for declared in TOOLS}
    for choice, wanted, opened in cases:
        constraint = compiler.chat(TOOLS, choice, wanted, opened=opened)
        assert constraint is not None
        for _ in range(100):
            found: Message = message(
                walk(constraint.clone(), tokenizer, rng, ["city"], rng.randrange(40)), tokenizer, opened
            )
            assert {made.name for made in found.tool_calls} <= names
            assert [made.index for made in found.tool_calls[:16]] == list(
                range(1, len(found.tool_calls[:16]) + 1)
            )
            assert found.tool_calls or choice == "auto"
            if wanted is not None and not found.tool_calls:
                int(found.content)
