"""What a client gets from constrained answers is valid under its schema: many schemas, random draws."""

from __future__ import annotations

import random
import zlib
from typing import Any

import jsonschema_rs
import pytest
from llama_k3.grammar import GrammarCompiler

from llama_k3 import Tokenizer

from .schemas import TOOLS
from .walks import loads, message, tool, walk

WALKS = 8


def words(schema: Any) -> list[str]:
    """Names of properties, which chance alone would not spell."""
    if isinstance(schema, dict):
        inner = [word for value in schema.values() for word in words(value)]
        return [
            *(str(name) for name in schema.get("properties", ())),
            *map(str, schema.get("required", ())),
            *inner,
        ]
    return [word for value in schema for word in words(value)] if isinstance(schema, list) else []


@pytest.mark.parametrize("name", TOOLS)
def test_arguments_are_valid(name: str, compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = TOOLS[name]
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    constraint = compiler.chat([tool("f", schema)], "required", opened="response", parallel_tool_calls=False)
    assert constraint is not None
    rng = random.Random(zlib.crc32(name.encode()))
    for patience in range(0, 10 * WALKS, 10):
        tokens = walk(constraint.clone(), tokenizer, rng, words(schema), patience)
        (call,) = message(tokens, tokenizer).tool_calls
        assert call.name == "f" and call.index == 1
        validator.validate(loads(call.arguments))


@pytest.mark.parametrize("name", TOOLS)
def test_response_is_valid(name: str, compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = TOOLS[name]
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    constraint = compiler.chat(None, None, wanted, opened="think")
    assert constraint is not None
    rng = random.Random(zlib.crc32(name.encode()))
    for patience in range(0, 10 * WALKS, 20):
        answer = message(
            walk(constraint.clone(), tokenizer, rng, words(schema), patience), tokenizer, "think"
        )
        assert not answer.tool_calls
        validator.validate(loads(answer.content))


@pytest.mark.parametrize("name", TOOLS)
def test_text_is_valid(name: str, compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = TOOLS[name]
    constraint = compiler.json_schema(schema)
    rng = random.Random(zlib.crc32(name.encode()))
    tokens = walk(constraint, tokenizer, rng, words(schema), 40)
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(loads(tokenizer.decode(tokens[:-1])))


def test_json_object_is_an_object(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = compiler.chat(None, None, {"type": "json_object"}, opened="response")
    assert constraint is not None
    rng = random.Random(5)
    for patience in range(0, 60, 10):
        content = message(walk(constraint.clone(), tokenizer, rng, (), patience), tokenizer).content
        assert isinstance(loads(content), dict)


def test_drawn_strings_fill_their_lengths(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """Two thousand characters are allowed and one more is not, be they of one byte or three."""
    schema = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 2000}}, "required": ["s"]}
    constraint = compiler.chat([tool("f", schema)], "required", opened="response")
    assert constraint is not None
    head = (
        '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="s" type="string"<|sep|>'
    )
    for token in tokenizer.encode(head, special=True):
        constraint.accept(token)
    letters, kanji = tokenizer.encode("x"), tokenizer.encode("日")
    for token in (letters + kanji) * 1000:
        constraint.accept(token)
    assert not constraint.allows(letters[0]) and not constraint.allows(kanji[0])
    assert constraint.allows(tokenizer.special_id("<|close|>"))
