"""llama.cpp loads the GGUF files that the converter writes, and agrees with the reference model on them.

llama.cpp runs in processes of its own: it brings its own ggml.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from convert.cli import main
from tests.conftest import CheckpointFactory
from tests.reference.model import ReferenceModel

ROOT = Path(__file__).resolve().parent.parent
ORACLE = "tests.oracles.llamacpp_logits"
N_TOKENS = 48
TOP = 20
# F32 weights and cache: float32 against float64, and llama.cpp's eps of 1e-5 in the norms that have 1e-6.
F32_TOLERANCE = 1e-3
# Weights of fewer bits, activations cut to 8 bits by llama.cpp: a check that nothing is swapped or lost.
QUANTISED_TOLERANCE = 0.5

Logprobs = dict[int, list[tuple[int, float]]]  # by number of tokens seen


def llamacpp(model: Path, tokens: list[int]) -> Logprobs:
    """The likeliest next tokens after each prefix."""
    ids = ",".join(map(str, tokens))
    command = [sys.executable, "-m", ORACLE, str(model), "--tokens", ids, "--all", "--top", str(TOP)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["n_tokens"] == len(tokens)
    return {entry["position"]: [(i, p) for i, p in entry["top"]] for entry in answer["positions"]}


def convert(folder: Path, out: Path, *options: str) -> Path:
    assert main([str(folder), "--outfile", str(out), *options]) == 0
    return out


def compare(found: Logprobs, folder: Path, tokens: list[int], tolerance: float) -> int:
    """Asserts that all log-probabilities agree; returns at how many positions the likeliest token differs."""
    logits = ReferenceModel(folder).forward(tokens)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    wanted = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    assert sorted(found) == list(range(1, len(tokens) + 1))
    differing = 0
    for position, entries in found.items():
        row = wanted[position - 1]
        assert len(entries) == TOP
        for token, logprob in entries:
            assert abs(logprob - row[token]) <= tolerance, f"{position} tokens, token {token}"
        differing += entries[0][0] != int(row.argmax())
    return differing


def random_tokens(folder: Path) -> list[int]:
    config = json.loads((folder / "config.json").read_text())
    n_vocab = config.get("text_config", config)["vocab_size"]
    return [int(token) for token in np.random.default_rng(11).integers(0, n_vocab, N_TOKENS)]


@pytest.mark.parametrize("arch", ["k3", "kimi-linear"])
@pytest.mark.parametrize("split", [(), ("--split-max-size", "1M")])
def test_f32(arch: str, split: tuple[str, ...], tiny_checkpoint: CheckpointFactory, tmp_path: Path) -> None:
    """Every position of a random sequence: the same log-probabilities and the same likeliest token."""
    folder = tiny_checkpoint(arch, experts="f32", dtype="f32")
    convert(folder, tmp_path / "x.gguf", "--outtype", "f32", *split)
    tokens = random_tokens(folder)
    model = min(tmp_path.glob("x*.gguf"))
    assert ("-00001-of-" in model.name) == bool(split)
    assert compare(llamacpp(model, tokens), folder, tokens, F32_TOLERANCE) == 0


def test_packed_experts_as_f32(trained_checkpoint: Path, tmp_path: Path) -> None:
    """The dequantised MXFP4 experts of a trained model: 1e-3 as above."""
    model = convert(trained_checkpoint, tmp_path / "x.gguf", "--outtype", "f32", "--experts", "f32")
    tokens = random_tokens(trained_checkpoint)
    assert compare(llamacpp(model, tokens), trained_checkpoint, tokens, F32_TOLERANCE) == 0


@pytest.mark.parametrize(
    "options", [(), ("--outtype", "f16"), ("--outtype", "q8_0"), ("--experts", "q8_0"), ("--experts", "bf16")]
)
def test_other_types(options: tuple[str, ...], trained_checkpoint: Path, tmp_path: Path) -> None:
    """Each type loads and gives nearly the same: on a trained model, whose choices are clear."""
    model = convert(trained_checkpoint, tmp_path / "x.gguf", *options)
    tokens = random_tokens(trained_checkpoint)
    assert compare(llamacpp(model, tokens), trained_checkpoint, tokens, QUANTISED_TOLERANCE) <= N_TOKENS // 10


@pytest.mark.parametrize("options", [(), ("--experts", "mxfp4", "--outtype", "q8_0")])
def test_linear_types(options: tuple[str, ...], tiny_checkpoint: CheckpointFactory, tmp_path: Path) -> None:
    """Kimi-Linear's files of all types load; a random model's choices are too close to compare."""
    folder = tiny_checkpoint("kimi-linear", experts="bf16")
    model = convert(folder, tmp_path / "x.gguf", *options)
    assert len(llamacpp(model, random_tokens(folder)[:4])) == 4
