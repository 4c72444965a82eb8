"""Speed does not cost accuracy: the fast form's choices are the reference form's, its error is llama.cpp's.

With 8-bit activations the random k3-mid takes other experts at nearly every position, and its divergence then
says little of how large the rounding was: each engine's mean is a draw around the same value. There the bound
is statistical. The trained checkpoint, stored in the same types, seldom takes other experts, so that the
median over its positions shows the rounding itself.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llama_k3 import Tokenizer
from scripts.accuracy.measure import (
    LLAMA_CPP,
    REFERENCE,
    Engine,
    excess,
    greedy_answers,
    kl_divergences,
    logits,
    random_tokens,
    runnable_variants,
)
from scripts.bench_model.cli import main as make_bench_model
from scripts.tiny_k3.dialogues import TASKS, DialogueGenerator
from scripts.tiny_k3.xtml import last_answer_start, render
from tests.runtime.conftest import Case, convert_to

LLAMA_CPP_F16 = Engine(LLAMA_CPP, "", "f16")


@pytest.fixture(scope="module")
def small(trained_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped checkpoint in k3-mid's types: Q8_0, and MXFP4 in the experts."""
    return convert_to(trained_checkpoint, tmp_path_factory.mktemp("gguf") / "q8.gguf", "--outtype", "q8_0")


@pytest.fixture(scope="module")
def variants(small: Path) -> list[str]:
    return runnable_variants(small)


def task_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Unseen instances of every task the model was trained for, up to where the answer begins."""
    prompts = []
    for task in TASKS:
        generator = DialogueGenerator(f"accuracy-{task}", training=False)
        for effort in ("off", "low"):
            ids: list[int] = []
            targets: list[bool] = []
            for part, target in render(generator.instance(task, effort)):
                tokens = [part] if isinstance(part, int) else tokenizer.encode(part)
                ids += tokens
                targets += [target] * len(tokens)
            prompts.append(ids[: last_answer_start(targets)])
    return prompts


def test_greedy_answers_are_those_of_the_reference_form(trained: Case, variants: list[str]) -> None:
    with trained.open() as model:
        prompts = task_prompts(model.tokenizer)
    assert len(prompts) >= 20
    wanted = greedy_answers(trained.gguf, REFERENCE, prompts)
    assert len({tuple(answer) for answer in wanted}) > len(prompts) // 2, "the answers hardly differ"
    for variant in variants:
        found = greedy_answers(trained.gguf, Engine("fast", variant, "bf16"), prompts)
        assert found == wanted, variant


def test_rounding_on_a_trained_model_is_no_larger_than_llamacpp_s(small: Path, variants: list[str]) -> None:
    """The median moves by a few per cent with the cache type, and fourfold for one bit less."""
    tokens, length = random_tokens(small, 256, seed=5), 64
    standard = logits(small, REFERENCE, tokens, length)
    theirs = np.median(kl_divergences(standard, logits(small, LLAMA_CPP_F16, tokens, length)))
    for variant in variants:
        found = logits(small, Engine("fast", variant, "f16"), tokens, length)
        ours = np.median(kl_divergences(standard, found))
        assert ours <= 1.15 * theirs, variant


def test_k3_mid_diverges_no_more_than_in_llamacpp(tmp_path: Path, variants: list[str]) -> None:
    """Mean over positions, in which the difference from llama.cpp's may be no more than chance (3 sigma)."""
    model = tmp_path / "k3-mid.gguf"
    assert make_bench_model(["k3-mid", "--outfile", str(model)]) == 0
    tokens = random_tokens(model, 48, seed=0)
    standard = logits(model, REFERENCE, tokens, 2)
    theirs = kl_divergences(standard, logits(model, LLAMA_CPP_F16, tokens, 2))
    best = kl_divergences(standard, logits(model, Engine("fast", variants[0], "bf16"), tokens, 2))
    difference, error = excess(best, theirs)
    assert difference <= 3 * error
