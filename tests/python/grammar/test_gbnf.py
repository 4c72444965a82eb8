"""llama.cpp's grammar notation."""

from __future__ import annotations

import pytest
from llama_k3.errors import ArgumentError
from llama_k3.grammar import GrammarCompiler, GrammarConstraint, GrammarError

from llama_k3 import Tokenizer

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws  # escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
CASES = [
    (JSON, ['{"a": [1, 2.5, "x\\n"]}', '{"a": "é"}', "{}"], ['{"a":}', "[]", "{} x"]),
    ('root ::= "yes" | "no"', ["yes", "no"], ["maybe", "yesno", ""]),
    ('root ::= ("- " [^\\n]+ "\\n")+', ["- a b\n", "- a\n- b\n"], ["- \n", "a"]),
    ("root ::= [ぁ-ゟ]+", ["あい"], ["a"]),
    ('root ::= "(" root ")" | ""', ["", "(())"], ["(()"]),
    ("root ::= [0-9]{2,3}", ["12", "123"], ["1", "1234"]),
    ('root ::= "a" . "b"', ["axb"], ["ab"]),
]
BAD = [
    'root ::= "a" (',
    "root ::= foo",
    'foo ::= "a"',
    "",
    "start: %json {}",
    "(" * 5000,
    "root ::= " + "(" * 5000,
    'root ::= "\ud800"',
]


def takes(constraint: GrammarConstraint, tokenizer: Tokenizer, text: str) -> bool:
    try:
        for token in [*tokenizer.encode(text), tokenizer.special_id("<|end_of_msg|>")]:
            constraint.accept(token)
    except ArgumentError:
        return False
    return True


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES, ids=[case[0][:20].strip() for case in CASES])
def test_gbnf(
    grammar: str, good: list[str], bad: list[str], compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    constraint = compiler.gbnf(grammar)
    assert [text for text in good + bad if takes(constraint.clone(), tokenizer, text)] == good


@pytest.mark.parametrize("grammar", BAD, ids=lambda grammar: grammar[:16])
def test_what_cannot_be_read(grammar: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match="^grammar: found .*, wanted"):
        compiler.gbnf(grammar)


def test_bounds(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match="at most 65536"):
        compiler.gbnf('root ::= "' + "a" * 70_000 + '"')
