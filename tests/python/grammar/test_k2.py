"""Answers of Kimi-Linear: plain content, then calls in Kimi-K2's control tokens."""

from __future__ import annotations

import random
import re

import jsonschema_rs
import pytest
from llama_k3.errors import ArgumentError
from llama_k3.grammar import GrammarCompiler, GrammarConstraint, GrammarError

from llama_k3 import Tokenizer

from ..vocabulary import small_tokenizer
from .schemas import TOOLS
from .test_schemas import words
from .walks import loads, spell, tool, walk

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DECLARED = [tool("weather", CITY), tool("now")]
_CALL = re.compile(
    r"<\|tool_call_begin\|>functions\.([\w.-]+):([0-9]+)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)


def call(name: str, arguments: str, number: int = 0) -> str:
    head = f"<|tool_call_begin|>functions.{name}:{number}"
    return f"{head}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def takes(constraint: GrammarConstraint | None, tokenizer: Tokenizer, text: str) -> bool:
    assert constraint is not None
    constraint = constraint.clone()
    try:
        for token in spell(tokenizer, text + "<|im_end|>"):
            constraint.accept(token)
    except ArgumentError:
        return False
    return True


def test_calls(linear_compiler: GrammarCompiler, linear_tokenizer: Tokenizer) -> None:
    auto = linear_compiler.chat(DECLARED, "auto", opened=None)
    good = [
        *("Hello", "", "I look." + section(call("weather", '{"city": "Oslo"}', 3))),
        section(call("now", "{}", 0), call("weather", '{"city":"x"}', 1)),
    ]
    bad = [
        *(
            section(),
            section(call("weather", "{}")),
            section(call("later", "{}")),
            section(call("now", '{"a":1}')),
        ),
        *(section(call("now", "{}")) + "more", "<|im_user|>", call("now", "{}")),
    ]
    assert [text for text in good + bad if takes(auto, linear_tokenizer, text)] == good
    required = linear_compiler.chat(DECLARED, "required", parallel_tool_calls=False)
    assert [text for text in good if takes(required, linear_tokenizer, text)] == [good[2]]


def test_response_format(linear_compiler: GrammarCompiler, linear_tokenizer: Tokenizer) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    plain = linear_compiler.chat(None, None, wanted)
    assert takes(plain, linear_tokenizer, "12") and not takes(plain, linear_tokenizer, "twelve")
    either = linear_compiler.chat(DECLARED, "auto", wanted)
    assert takes(either, linear_tokenizer, "12") and takes(
        either, linear_tokenizer, section(call("now", "{}"))
    )
    assert not takes(either, linear_tokenizer, "12" + section(call("now", "{}")))
    assert not takes(either, linear_tokenizer, "")


@pytest.mark.parametrize(
    "name", ["one string", "recursive root", "pattern and properties", "any schema", "types"]
)
def test_arguments_are_valid(
    name: str, linear_compiler: GrammarCompiler, linear_tokenizer: Tokenizer
) -> None:
    schema = TOOLS[name]
    constraint = linear_compiler.chat([tool("f", schema)], "required", parallel_tool_calls=False)
    assert constraint is not None
    rng = random.Random(9)
    for patience in range(0, 100, 10):
        tokens = walk(constraint.clone(), linear_tokenizer, rng, words(schema), patience)
        text = linear_tokenizer.decode(tokens)
        ((called, _, arguments),) = _CALL.findall(text)
        assert called == "f"
        jsonschema_rs.validator_for({**schema, "type": "object"}).validate(loads(arguments))


def test_a_vocabulary_without_the_markers(tokenizer: Tokenizer) -> None:
    bare = small_tokenizer([], ["<|im_end|>"], [])
    wanted = {"type": "json_object"}
    for compiler in (GrammarCompiler(bare, "kimi-linear"), GrammarCompiler(bare, None)):
        assert takes(compiler.chat(None, None, wanted), bare, '{"a": 1}')
        with pytest.raises(GrammarError, match="^tools: found "):
            compiler.chat(DECLARED)


def test_names_that_the_id_cannot_hold(linear_compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match=r"^tools\[1\].function.name: found 'a:1'"):
        linear_compiler.chat([tool("b"), tool("a:1")])
