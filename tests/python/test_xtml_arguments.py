"""Arguments of tool calls: JSON text to keys and raw values and back, byte by byte."""

from __future__ import annotations

import json
import random

import pytest
from llama_k3.xtml.arguments import Argument, ArgumentWriter, deep_value_end, split_object, value_kind


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("{}", []),
        (" {\n}\t", []),
        ('{"a":1e2}', [("a", "number", "1e2")]),
        ('{"a": 1.0, "b": -0}', [("a", "number", "1.0"), ("b", "number", "-0")]),
        ('{"a":1,"a":2}', [("a", "number", "1"), ("a", "number", "2")]),
        ('{"\\u00e9\\n":"\\ud83d\\ude42\\/"}', [("é\n", "string", "🙂/")]),
        ('{"a": {"b" :[ 1,2]}}', [("a", "object", '{"b" :[ 1,2]}')]),
        ('{ "a" : true , "b":null }', [("a", "boolean", "true"), ("b", "null", "null")]),
        ('{\n  "a": [\n    1\n  ]\n}', [("a", "array", "[\n    1\n  ]")]),
        ('{"a":  1 , "b": [] }', [("a", "number", " 1 "), ("b", "array", "[] ")]),
        ('{"a":  "x" , "b": "" }', [("a", "string", "x"), ("b", "string", "")]),
        ('{"a": ' + "9" * 10_000 + "}", [("a", "number", "9" * 10_000)]),
    ],
)
def test_members_of_an_object(text: str, members: list[tuple[str, str, str]]) -> None:
    assert split_object(text) == [Argument(*member) for member in members]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1", "[]", '"a"', "{", "{]", '{"a"}', '{"a":}', '{"a":1', '{"a":1,}', "{,}", '{"a":1}}'),
        *(
            '{"a":1 "b":2}',
            "{a:1}",
            "{'a':1}",
            '{"a":NaN}',
            '{"a":-Infinity}',
            '{"a":01}',
            '{"a":"\n"}',
            "{}x",
        ),
        *('{"a":"\\x"}', '{"a', '{"a":tru}', '{"a":1.}', "\ufeff{}", '{"a":[1}', '{"a":\u00a01}'),
    ],
)
def test_texts_that_are_no_object(text: str) -> None:
    assert split_object(text) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (" 1 ", "number"),
        ("-1.5e+3", "number"),
        ("true", "boolean"),
        ("null", "null"),
        ('"x"', "string"),
        ("{}", "object"),
        ("[[]]", "array"),
        ("", None),
        ("1 2", None),
        ("NaN", None),
        ("1_000", None),
        ("[" * 9999, None),
        ("[" * 9999 + "]" * 9999, "array"),
    ],
)
def test_kinds_of_values(text: str, kind: str | None) -> None:
    assert value_kind(text) == kind


def test_the_scanner_for_deep_values_agrees_with_the_library() -> None:
    draw = random.Random(5)
    decoder = json.JSONDecoder(parse_constant=lambda name: json.loads("x"))
    words = [
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        '"a"',
        '"\\n"',
        "1",
        "-0.5e3",
        "true",
        "null",
        " ",
        "NaN",
        '"',
        "01",
    ]
    whole = 0
    for _ in range(20_000):
        text = "".join(draw.choice(words) for _ in range(draw.randint(1, 9)))
        try:
            end: int | None = decoder.raw_decode(text)[1]
            whole += 1
        except ValueError:
            end = None
        assert deep_value_end(text, 0) == end, text
    assert whole > 2000


def test_a_written_text_splits_into_what_was_written() -> None:
    writer = ArgumentWriter()
    text = writer.begin("a", "string") + writer.write('x"') + writer.write("\n") + writer.end()
    text += writer.begin("n", "number") + writer.write(" 1e") + writer.write("2") + writer.end()
    text += writer.finish()
    assert text == '{"a": "x\\"\\n", "n":  1e2}'
    assert split_object(text) == [Argument("a", "string", 'x"\n'), Argument("n", "number", " 1e2")]
