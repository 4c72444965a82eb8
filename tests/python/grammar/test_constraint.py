"""Constraints at one point of their text: masks, refused tokens, ends, copies, parts of characters, costs."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llama_k3.errors import ArgumentError
from llama_k3.grammar import GrammarCompiler, GrammarConstraint, GrammarError

from llama_k3 import Tokenizer

from ..vocabulary import small_tokenizer
from .walks import allowed, message, spell, tool, walk

TOOLS = [
    tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
]
MASKED = np.float32(-1e30)


def accept(constraint: GrammarConstraint, tokens: list[int]) -> None:
    for token in tokens:
        constraint.accept(token)


@pytest.fixture
def thinking(compiler: GrammarCompiler) -> GrammarConstraint:
    constraint = compiler.chat(TOOLS, "auto", opened="think")
    assert constraint is not None
    return constraint


def test_mask_keeps_allowed_logits(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """With few and with many tokens allowed, and in rows that are longer than the vocabulary."""
    few, many = compiler.json_schema({"type": "boolean"}), compiler.json_schema({"type": "string"})
    many.accept(tokenizer.encode('"')[0])
    for constraint in (few, many):
        logits = np.linspace(-9, 9, len(tokenizer) + 7, dtype=np.float32)
        before = logits.copy()
        constraint.mask(logits)
        kept = np.array([constraint.allows(token) for token in range(len(logits))])
        assert 0 < kept.sum() < len(tokenizer)
        assert np.array_equal(logits[kept], before[kept])
        assert (logits[~kept] == MASKED).all()


def test_mask_holds_only_what_is_allowed(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = compiler.chat(TOOLS, "required", opened="response")
    assert constraint is not None
    rng = random.Random(3)
    for token in walk(constraint.clone(), tokenizer, rng, ["city"], patience=5):
        kept = allowed(constraint, len(tokenizer))
        assert kept[token] and all(constraint.allows(int(index)) for index in np.flatnonzero(kept))
        constraint.accept(token)


def test_refused_token_changes_nothing(thinking: GrammarConstraint, tokenizer: Tokenizer) -> None:
    accept(thinking, spell(tokenizer, "hm<|close|>think<|sep|>"))
    before = allowed(thinking, len(tokenizer))
    wrong = [
        tokenizer.encode("x")[0],
        tokenizer.special_id("<|close|>"),
        *tokenizer.end_ids,
        -1,
        len(tokenizer),
    ]
    for token in wrong:
        with pytest.raises(ArgumentError):
            thinking.accept(token)
        assert not thinking.allows(token)
    assert np.array_equal(allowed(thinking, len(tokenizer)), before)
    thinking.accept(tokenizer.special_id("<|open|>"))


def test_end_tokens_come_exactly_at_the_end(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = compiler.json_schema({"type": "integer"})
    assert not any(constraint.allows(token) for token in tokenizer.end_ids)
    constraint.accept(tokenizer.encode("1")[0])
    assert all(constraint.allows(token) for token in tokenizer.end_ids)
    assert constraint.allows(tokenizer.encode("2")[0])
    constraint.accept(min(tokenizer.end_ids))
    assert not any(constraint.allows(token) for token in range(len(tokenizer)))
    with pytest.raises(ArgumentError):
        constraint.accept(tokenizer.encode("2")[0])
    with pytest.raises(GrammarError, match="at its end"):
        constraint.mask(np.zeros(len(tokenizer), np.float32))


def test_clones_go_their_own_ways(thinking: GrammarConstraint, tokenizer: Tokenizer) -> None:
    accept(thinking, spell(tokenizer, "hm<|close|>think<|sep|>"))
    other = thinking.clone()
    accept(thinking, spell(tokenizer, "<|open|>response<|sep|>"))
    accept(other, spell(tokenizer, "<|open|>tools<|sep|>"))
    assert thinking.allows(tokenizer.encode("x")[0]) and not other.allows(tokenizer.encode("x")[0])
    ended = thinking.clone()
    accept(ended, spell(tokenizer, "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"))
    assert not ended.clone().allows(tokenizer.special_id("<|end_of_msg|>"))
    assert thinking.allows(tokenizer.encode("x")[0])


def test_thinking_may_be_closed_at_any_moment(thinking: GrammarConstraint, tokenizer: Tokenizer) -> None:
    """Also within a character: a budget ends the thinking wherever it is."""
    rng = random.Random(2)
    closing = spell(tokenizer, "<|close|>think<|sep|><|open|>response<|sep|>")
    for _ in range(300):
        accept(thinking.clone(), closing)
        thinking.accept(int(rng.choice(sorted(tokenizer.ranks.values()))))


@pytest.mark.parametrize("character", ["é", "日", "😀"])
def test_characters_in_bytes(character: str) -> None:
    """A vocabulary without the character spells it in bytes; a string value never ends within it."""
    markers = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"]
    tokenizer = small_tokenizer([], markers, ["unused"])
    constraint = GrammarCompiler(tokenizer, "kimi-k3").chat(TOOLS, "required", opened="response")
    assert constraint is not None
    head = '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
    accept(constraint, spell(tokenizer, head + '<|open|>argument key="city" type="string"<|sep|>'))
    close = tokenizer.special_id("<|close|>")
    for byte in character.encode():
        assert constraint.allows(close) == (byte == character.encode()[0])
        assert not constraint.allows(tokenizer.encode("x")[0]) or byte == character.encode()[0]
        constraint.accept(byte)
    assert constraint.allows(close) and not constraint.allows(0xBF)
    assert not constraint.allows(len(tokenizer) - 1)


def test_a_cost_beyond_its_limit_is_an_error(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """States without number: the walk ends or a GrammarError does, not the memory."""
    constraint = compiler.json_schema({"type": "string", "pattern": "(a|b)*a(a|b){300}c"})
    rng = random.Random(1)
    letters = [tokenizer.encode(letter)[0] for letter in "ab"]
    constraint.accept(tokenizer.encode('"')[0])
    try:
        for _ in range(3000):
            constraint.mask(np.zeros(len(tokenizer), np.float32))
            constraint.accept(rng.choice(letters))
    except GrammarError as error:
        assert "too complex" in str(error)


def test_equal_requests_are_compiled_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(tokenizer, "kimi-k3")
    compiled: list[str] = []
    original = GrammarCompiler._compile

    def counted(self: GrammarCompiler, text: str) -> object:
        compiled.append(text)
        return original(self, text)

    monkeypatch.setattr(GrammarCompiler, "_compile", counted)
    first, second = (compiler.chat(json.loads(json.dumps(TOOLS)), "auto", opened="think") for _ in range(2))
    assert first is not None and second is not None and first is not second
    assert len(compiled) == 1
    accept(first, spell(tokenizer, "<|close|>"))
    assert second.allows(tokenizer.encode("x")[0])
    compiler.chat(TOOLS, "required", opened="think")
    assert len(compiled) == 2
    for number in range(100):
        compiler.json_schema({"const": number})
    compiler.chat(TOOLS, "auto", opened="think")
    assert len(compiled) == 103


def test_threads_share_a_compiler(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, "kimi-k3")

    def answer(seed: int) -> str:
        rng = random.Random(seed)
        constraint = compiler.chat(TOOLS, "required", opened="response", parallel_tool_calls=seed % 2 == 0)
        assert constraint is not None
        return (
            message(walk(constraint, tokenizer, rng, ["city"], patience=10), tokenizer)
            .tool_calls[0]
            .arguments
        )

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(answer, range(40)))
    assert together == [answer(seed) for seed in range(40)]
    assert all("city" in json.loads(arguments) for arguments in together)
