"""generate.py and sampling.py: text as it comes, stop strings, seeds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from llama_k3.generate import TextStream

from llama_k3 import ArgumentError, Model, Sampler, Tokenizer, xtml

QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]


@pytest.fixture
def prompt(tokenizer: Tokenizer) -> list[int]:
    return xtml.encode(xtml.render(QUESTION), tokenizer)


def stream_of(data: bytes, sizes: Sequence[int], stop: Sequence[str] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(stop)
    shown, start = [], 0
    for size in sizes:
        shown.append(stream.feed(data[start : start + size]))
        start += size
    shown += [stream.feed(data[start:]), stream.close()]
    return shown, stream


def test_no_piece_ends_inside_a_character() -> None:
    text = "añ漢😀\r\n" * 20
    draw = random.Random(1)
    for _ in range(50):
        shown, _ = stream_of(text.encode(), [draw.randint(1, 3) for _ in range(80)])
        assert "".join(shown) == text
        assert "\ufffd" not in "".join(shown)


def test_an_incomplete_end_is_shown_as_such() -> None:
    shown, _ = stream_of("a漢".encode()[:-1], [1])
    assert "".join(shown) == "a\ufffd"


@pytest.mark.parametrize(
    ("text", "stop", "wanted"),
    [
        ("one STOP two", ["STOP"], "one "),
        ("one STO two", ["STOP"], "one STO two"),
        ("aSTSTOPb", ["STOP"], "aST"),
        ("abcabcabd", ["abd"], "abcabc"),
        ("x漢字y", ["漢字"], "x"),
        ("first end then stop", ["stop", "end"], "first "),
        ("abc", ["abc", "bc"], ""),
        ("never", ["more"], "never"),
    ],
)
def test_stop_strings_never_show(text: str, stop: list[str], wanted: str) -> None:
    data = text.encode()
    draw = random.Random(2)
    for sizes in [[1] * len(data), [len(data)], *([draw.randint(1, 4) for _ in data] for _ in range(50))]:
        shown, stream = stream_of(data, sizes, stop)
        assert "".join(shown) == wanted
        assert stream.stopped == (wanted != text)
        for end in range(len(shown)):
            assert wanted.startswith("".join(shown[: end + 1]))


@pytest.mark.parametrize("stop", [[""], ["a", ""], [5]])
def test_stop_strings_that_are_refused(stop: list[Any]) -> None:
    with pytest.raises(ArgumentError, match="stop: found"):
        TextStream(stop)


def test_the_trained_model_answers(model: Model, prompt: list[int]) -> None:
    pieces = list(model.generate(prompt, temperature=0))
    assert len(pieces) > 10
    message = xtml.parse("".join(pieces), "think")
    assert message.content == "12 + 7 = 19."
    assert message.reasoning


def test_stop_and_length(model: Model, prompt: list[int]) -> None:
    whole = "".join(model.generate(prompt, temperature=0))
    stop = whole[10:15]
    stopped = "".join(model.generate(prompt, temperature=0, stop=stop))
    assert stopped == whole[: whole.index(stop)]
    short = "".join(model.generate(prompt, max_tokens=3, temperature=0))
    assert len(short) < len(whole)
    assert whole.startswith(short)
    assert list(model.generate(prompt, max_tokens=0)) == []


def test_a_seed_repeats_the_text(model: Model) -> None:
    def text(seed: int) -> str:
        return "".join(
            model.generate("The", max_tokens=30, temperature=2.0, top_k=0, top_p=1, min_p=0, seed=seed)
        )

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) == 4


def test_special_tokens_of_a_text_prompt_stay_text(model: Model, tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("<|open|>message")
    expected = list(model.generate(plain, max_tokens=5, temperature=0))
    assert list(model.generate("<|open|>message", max_tokens=5, temperature=0)) == expected


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"prompt": ""}, "prompt: found no tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens: found -1"),
        ({"prompt": "a", "stop": [""]}, "stop: found"),
        ({"prompt": "a", "seed": -1}, "seed=-1"),
        ({"prompt": "a", "temperature": "hot"}, "temperature='hot'"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
    ],
)
def test_arguments_are_refused_at_once(model: Model, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        model.generate(**arguments)


def test_sampling_follows_the_probabilities() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    with Sampler(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7) as sampler:
        draws = [sampler.sample(np.log(probabilities)) for _ in range(4000)]
    counts = np.bincount(draws, minlength=4) / len(draws)
    # Five standard errors of the most uncertain share.
    assert np.abs(counts - probabilities).max() < 5 * 0.5 / len(draws) ** 0.5


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.75}, {0, 1}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"temperature": 0.0}, {0}),
    ],
)
def test_filters(filters: dict[str, Any], kept: set[int]) -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3, **filters}
    with Sampler(**options) as sampler:
        assert {sampler.sample(logits) for _ in range(500)} == kept


def test_logits_have_to_be_one_row() -> None:
    with Sampler(seed=1) as sampler:
        assert sampler.seed == 1
        with pytest.raises(ArgumentError, match="logits: found shape"):
            sampler.sample(np.zeros((2, 3)))
