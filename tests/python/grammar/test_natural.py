"""The trained model's own answers pass the grammar: greedy tokens are the same with it and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from llama_k3.grammar import GrammarCompiler, GrammarConstraint
from llama_k3.xtml import encode, render

from llama_k3 import Model, Tokenizer
from scripts.tiny_k3.words import TIME_TOOL, WEATHER_TOOL

from .walks import message


@pytest.fixture(scope="module")
def small(tiny_gguf: Path) -> Iterator[Model]:
    """On one thread: its steps are too short to share."""
    with Model(tiny_gguf, n_threads=1) as opened:
        yield opened


QUESTIONS = (
    "What is the weather in Oslo?",
    "Tell me the weather in Kyoto.",
    "Who are you?",
    "What is 27 + 15?",
    "Repeat after me: seven red boats",
)


def greedy(model: Model, prompt: list[int], constraint: GrammarConstraint | None) -> list[int]:
    """The likeliest tokens to the answer's end."""
    tokens: list[int] = []
    pending = prompt
    with model.context(n_ctx=len(prompt) + 200) as context:
        while not tokens or tokens[-1] not in model.tokenizer.end_ids:
            assert len(tokens) < 199
            row = context.decode(pending)[0]
            if constraint is not None:
                constraint.mask(row)
            pending = [int(np.argmax(row))]
            if constraint is not None:
                constraint.accept(pending[0])
            tokens += pending
    return tokens


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("question", QUESTIONS)
def test_auto_changes_nothing(question: str, thinking: bool, small: Model, compiler: GrammarCompiler) -> None:
    tools = [TIME_TOOL, WEATHER_TOOL] if "Kyoto" in question else [WEATHER_TOOL]
    prompt = encode(render([{"role": "user", "content": question}], tools, thinking), small.tokenizer)
    opened: Literal["think", "response"] = "think" if thinking else "response"
    constraint = compiler.chat(tools, "auto", opened=opened)
    plain = greedy(small, prompt, None)
    assert greedy(small, prompt, constraint) == plain
    calls = message(plain, small.tokenizer, opened).tool_calls
    assert [call.name for call in calls] == (["get_weather"] if "weather" in question else [])


def test_required_makes_the_model_call(small: Model, tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    prompt = encode(render([{"role": "user", "content": "Who are you?"}], [WEATHER_TOOL], False), tokenizer)
    constraint = compiler.chat([WEATHER_TOOL], "required", opened="response", parallel_tool_calls=False)
    (call,) = message(greedy(small, prompt, constraint), tokenizer).tool_calls
    assert call.name == "get_weather" and '"city"' in call.arguments


def test_response_format_makes_the_model_write_json(
    small: Model, tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer", "maximum": 99}},
        "required": ["sum"],
    }
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {**schema, "additionalProperties": False}},
    }
    prompt = encode(render([{"role": "user", "content": "What is 27 + 15?"}], None, False), tokenizer)
    constraint = compiler.chat(None, None, wanted, opened="response")
    content = message(greedy(small, prompt, constraint), tokenizer).content
    assert content.startswith("{") and content.endswith("}") and '"sum"' in content
