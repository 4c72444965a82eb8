"""Regular expressions of schemas: what they match in raw text and in JSON, and what is refused."""

from __future__ import annotations

import json

import pytest
from llama_k3.errors import ArgumentError
from llama_k3.grammar import GrammarCompiler, GrammarConstraint, GrammarError
from llama_k3.grammar.pattern import search

from llama_k3 import Tokenizer

from .walks import spell, tool

MATCHES = [
    ("^a|b$", ["a", "axx", "xxb", "b"], ["xa", "bx", "c"]),
    ("abc", ["abc", "xabcx"], ["ab"]),
    ("^(?:a|b)+$", ["abab"], ["", "abc"]),
    ("^$", [""], ["a"]),
    ("", ["", "a"], []),
    ("(^a$)|(^b$)", ["a", "b"], ["ab"]),
    ("^(a|b$)", ["ax", "b"], ["bx"]),
    ("^.+$", ["ab", "日"], ["a\r", "a\nb", ""]),
    (r"^\d{3}-\w+\s?$", ["123-ab_ ", "123-a"], ["٣12-a", "12-a"]),
    (r"^[^\d\s]+$", ["abc", "é"], ["1", "٣", " ", "\ufeff"]),
    (r"^\D\W\S$", ["x x", "é-é"], ["1 x", "xxx", "x  "]),
    (r"^[\w.-]+@[a-z]+?\.[a-z]{2,}$", ["a.b-c@x.com"], ["a@x"]),
    (r"^\u00e9\x41\u{1F600}\ud83d\ude00$", ["éA😀😀"], ["e"]),
    (r'^[a-zÀ-ÿ/"\\]+$', ['é/"\\'], ["A"]),
    (r"^[\s\S]*$", ["a b\n", ""], []),
    (r"^\p{L}+$", ["éa"], ["1"]),
    ("^(foo(bar)?|baz)$", ["foo", "foobar", "baz"], ["bar"]),
    ("^(?<y>[0-9]{4})-(?P<m>..)$", ["2020-ab"], ["2020-a"]),
    ("^a{,3}$", ["a{,3}"], ["aa"]),
    ("^[a-]+[]x]$", ["a-x"], ["ab"]),
]
REFUSED = [
    *(
        "a(?=b)",
        "(?<!a)b",
        "(?i)a",
        r"\bx",
        r"(a)\1",
        "a^b",
        "x$y",
        "(^a)+",
        "(a",
        "a)",
        "*a",
        "a**",
        "[a",
        "[z-a]",
    ),
    *(
        "a{3,1}",
        "a{1000000}",
        r"\q",
        r"\u{110000}",
        r"\ud800",
        r"\x1",
        r"\p{",
        "\\",
        "x" * 20_000,
        "(" * 80 + ")" * 80,
    ),
]


def takes(constraint: GrammarConstraint, tokens: list[int]) -> bool:
    try:
        for token in tokens:
            constraint.accept(token)
    except ArgumentError:
        return False
    return True


@pytest.mark.parametrize(("pattern", "good", "bad"), MATCHES[:-1], ids=[case[0] for case in MATCHES[:-1]])
def test_pattern(
    pattern: str, good: list[str], bad: list[str], compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    schema = {"type": "string", "pattern": pattern}
    quoted = compiler.json_schema(schema)
    parameters = {"type": "object", "properties": {"s": schema}}
    raw = compiler.chat([tool("f", parameters)], "required", opened="response")
    assert raw is not None
    head = '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
    assert takes(raw, spell(tokenizer, head + '<|open|>argument key="s" type="string"<|sep|>'))
    close, end = tokenizer.special_id("<|close|>"), tokenizer.special_id("<|end_of_msg|>")
    for text in good + bad:
        wanted = text in good
        assert takes(raw.clone(), [*tokenizer.encode(text), close]) == wanted, text
        literal = tokenizer.encode(json.dumps(text, ensure_ascii=False))
        assert takes(quoted.clone(), [*literal, end]) == wanted, text


@pytest.mark.parametrize("pattern", REFUSED, ids=lambda pattern: pattern[:12])
def test_refused_pattern(pattern: str) -> None:
    with pytest.raises(GrammarError, match="^here: found "):
        search(pattern, "here")
