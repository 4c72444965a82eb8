"""Random walks through a constraint, and what a chat's client would get from them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_k3.grammar import GrammarConstraint
from llama_k3.xtml import Message, Segment, StreamParser

from llama_k3 import Tokenizer

_CLOSERS = (
    "<|close|>",
    "<|sep|>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)


def allowed(constraint: GrammarConstraint, n_vocab: int) -> npt.NDArray[np.bool_]:
    """[n_vocab]: which tokens the mask leaves."""
    logits = np.ones(n_vocab, np.float32)
    constraint.mask(logits)
    return logits == 1


def walk(
    constraint: GrammarConstraint,
    tokenizer: Tokenizer,
    rng: random.Random,
    words: Sequence[str] = (),
    patience: int = 60,
    limit: int = 4000,
) -> list[int]:
    """Tokens to the end of the text: at random at first, then in a hurry to close what is open.

    `words`: texts that are begun more often than chance would, so that long names are met.
    """
    closers = [tokenizer.special_ids[name] for name in _CLOSERS if name in tokenizer.special_ids]
    closers += sorted(tokenizer.end_ids)
    quick = [tokenizer.encode(text)[0] for text in ('"', '"', '"', "}", "]", "0", "-", ":", *words)]
    likely = [token for word in words for token in tokenizer.encode(word)]
    tokens: list[int] = []
    while len(tokens) < limit:
        choices = allowed(constraint, len(tokenizer))
        hurry, chance = len(tokens) > patience, rng.random()
        found = [token for token in closers if hurry and choices[token]]
        if not found:
            preferred = likely if chance < 0.3 else quick if hurry and chance < 0.85 else []
            found = [token for token in preferred if choices[token]]
        token = rng.choice(found) if found else int(rng.choice(np.flatnonzero(choices)))
        constraint.accept(token)
        tokens.append(token)
        if token in tokenizer.end_ids:
            return tokens
    raise AssertionError(f"no end within {limit} tokens: {tokenizer.decode(tokens)[-300:]!r}")


def segments(tokens: Sequence[int], tokenizer: Tokenizer) -> list[Segment]:
    """Control tokens, and the text between them in one piece each."""
    found: list[Segment] = []
    text: list[int] = []
    for token in tokens:
        name = tokenizer.special_name(token)
        if name is None:
            text.append(token)
            continue
        found += [Segment("text", tokenizer.decode(text)), Segment("control", name)]
        text = []
    return [*found, Segment("text", tokenizer.decode(text))]


def message(tokens: Sequence[int], tokenizer: Tokenizer, opened: Any = "response") -> Message:
    """What the parser of Kimi-K3's answers makes of the tokens."""
    parser = StreamParser(opened)
    for segment in segments(tokens, tokenizer):
        parser.feed(segment)
    return parser.close()


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a text in which names of control tokens stand for these."""
    return tokenizer.encode(text, special=True)


def loads(text: str) -> Any:
    """JSON with numbers that no double holds as another number: their size is no concern of a schema."""

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else math.copysign(1e300, value)

    return json.loads(text, parse_float=number)


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    """An OpenAI declaration."""
    function = {"name": name, **more}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}
