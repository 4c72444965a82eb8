"""The input of a tool_use block is one JSON object, whatever the model wrote and however it was cut."""

from __future__ import annotations

import json
from typing import Any

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_k3.server.anthropic.tool_input import MAX_DEPTH, ToolInput

from .hand_made import PROPERTY

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    st.dictionaries(st.text(), JSON, max_size=4),
    st.sampled_from([None, 1]),
    st.booleans(),
)
NEARLY = st.builds(
    lambda text, place, junk: text[: place % (len(text) + 1)] + junk + text[place % (len(text) + 1) :],
    OBJECTS,
    st.integers(0, 1000),
    st.text('{}[]",:\\u0d8 tfn1-.eE\n', max_size=3),
)


def read(text: str, cuts: list[int]) -> str:
    """What is streamed in all; at every moment it is the beginning of JSON, in whole members."""
    reader, output, rest, turn = ToolInput(), "", text, 0
    while rest:
        length = cuts[turn % len(cuts)]
        piece, rest, turn = rest[:length], rest[length:], turn + 1
        output += reader.feed(piece)
        if output:
            parsed(output + "}")
    return output + reader.close()


def parsed(text: str) -> dict[str, Any]:
    value = json.loads(text, parse_constant=pytest.fail)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    assert isinstance(value, dict)
    assert jiter.from_json(text.encode()) == value
    return value


@PROPERTY
@given(OBJECTS, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_an_object_is_passed_on(text: str, cuts: list[int]) -> None:
    assert read(text, cuts) == text
    parsed(text)


@PROPERTY
@given(NEARLY | st.text(), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_anything_becomes_the_same_object_in_every_cut(text: str, cuts: list[int]) -> None:
    whole = read(text, [len(text) + 1])
    parsed(whole)
    assert read(text, cuts) == whole


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        (" ", {}),
        ("{", {}),
        ("{ }", {}),
        ('{"a', {"raw": '"a'}),
        ('{"a": 12', {"raw": '"a": 12'}),
        ('{"a": 12, ', {"a": 12}),
        ('{"command": "rm -r /tmp', {"raw": '"command": "rm -r /tmp'}),
        ('{"a": 1, "b": ["two", "th', {"a": 1, "raw": '"b": ["two", "th'}),
        ('{"a": "x\\', {"raw": '"a": "x\\'}),
        ('{"a": "\\"}", "b": "\\\\"}', {"a": '"}', "b": "\\"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\N{GRINNING FACE}"}),
        ('{"a": "\\ud83d"}', {"raw": '"a": "\\ud83d"}'}),
        ('{"a": 1} and more', {"a": 1, "raw": "and more"}),
        ('{"a": 1,}', {"a": 1, "raw": "}"}),
        ('{"a": 1e999}', {"raw": '"a": 1e999}'}),
        ('{"a": NaN, "b": 1}', {"raw": '"a": NaN, "b": 1}'}),
        ('{"a": [1}]}', {"raw": '"a": [1}]}'}),
        ('{"a"]', {"raw": '"a"]'}),
        ("twelve", {"raw": "twelve"}),
        ('["Oslo"]', {"raw": '["Oslo"]'}),
    ],
)
def test_texts_that_are_no_whole_object(text: str, wanted: dict[str, Any]) -> None:
    assert parsed(read(text, [1])) == wanted


@pytest.mark.parametrize(("depth", "passed"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False), (100_000, False)])
def test_depth(depth: int, passed: bool) -> None:
    text = '{"a": ' + "[" * depth + "]" * depth + "}"
    assert ("raw" not in parsed(read(text, [1000]))) is passed


def test_a_long_value_comes_when_it_is_whole() -> None:
    reader = ToolInput()
    assert reader.feed('{"path": "a.txt", "text": "') == '{"path": "a.txt"'
    assert {reader.feed("x" * 5) for _ in range(20_000)} == {""}
    member = reader.feed('"}')
    assert member == ', "text": "' + "x" * 100_000 + '"'
    assert reader.close() == "}"
