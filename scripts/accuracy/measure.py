"""Runs the engines, each in a process of its own, and compares their logits.

All with one thread: ggml's threads wait for each other by spinning, which takes long on a busy machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_k3 import Model

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("avx512", "avx2", "neon", "generic")
LLAMA_CPP = "llama.cpp"
Logits = NDArray[np.float32]


class EngineError(RuntimeError):
    """An engine that ended with an error; the text is what it said."""


@dataclass(frozen=True)
class Engine:
    """What computes logits. `kernels`: a value of GGML_K3_CPU, empty where the form has no choice."""

    form: str
    kernels: str
    cache: str

    @property
    def name(self) -> str:
        return f"{self.form} {self.kernels}".strip()


REFERENCE = Engine("reference", "", "f32")


@dataclass(frozen=True)
class Divergence:
    """Of one engine from the standard, over positions: KL(standard || engine) in nats, and equal choices.

    nmse: squared errors of the logits, each row without its mean, over the squares of the standard's: a
    constant on a whole row changes no probability, and llama.cpp does not tell it.
    """

    mean: float
    mean_error: float
    median: float
    largest: float
    same_top: float
    nmse: float


def runnable_variants(model: Path) -> list[str]:
    """Kernels that this processor runs, best first."""
    found = []
    for variant in VARIANTS:
        try:
            logits(model, Engine("fast", variant, "bf16"), [0], 1)
        except EngineError as error:
            if "GGML_K3_CPU" not in str(error):
                raise
            continue
        found.append(variant)
    return found


def random_tokens(model: Path, count: int, seed: int) -> list[int]:
    with Model(model) as opened:
        return [int(token) for token in np.random.default_rng(seed).integers(0, opened.n_vocab, count)]


def logits(model: Path, engine: Engine, tokens: Sequence[int], length: int) -> Logits:
    """[tokens, n_vocab] after each token, in sequences of `length`; of llama.cpp log-probabilities.

    EngineError where the engine fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        arguments = ["--tokens", ",".join(map(str, tokens)), "--length", str(length)]
        arguments += ["--cache", engine.cache, "--out", str(out)]
        module = "scripts.accuracy.own"
        if engine.form == LLAMA_CPP:
            module = "scripts.accuracy.peer"
            with Model(model) as opened:
                arguments += ["--vocab", str(opened.n_vocab)]
        _run(engine, [module, str(model.resolve()), *arguments])
        found: Logits = np.load(out)
    return found


def greedy_answers(model: Path, engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """llama-k3's likeliest tokens after each prompt, up to the end of the message; with the default cache."""
    answers: list[list[int]] = json.loads(
        _run(engine, ["scripts.accuracy.greedy", str(model.resolve())], json.dumps(prompts))
    )
    return answers


def _run(engine: Engine, arguments: Sequence[str], text: str = "") -> str:
    """What a module prints, run with the engine's settings."""
    settings = {"LLAMA_K3_OPS": engine.form, "GGML_K3_CPU": engine.kernels}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        input=text,
        cwd=ROOT,
        env={**os.environ, **settings, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EngineError(f"{engine.name}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def kl_divergences(standard: Logits, found: Logits) -> NDArray[np.float64]:
    """KL(standard || found) of each row, in nats; both may be logits or log-probabilities."""
    wanted, actual = _log_softmax(standard), _log_softmax(found)
    result: NDArray[np.float64] = (np.exp(wanted) * (wanted - actual)).sum(axis=-1)
    return result


def divergence(standard: Logits, found: Logits) -> Divergence:
    """`found` may be logits or log-probabilities of the same positions."""
    each = kl_divergences(standard, found)
    wanted, actual = _log_softmax(standard), _log_softmax(found)
    centred = wanted - wanted.mean(axis=-1, keepdims=True)
    error = actual - actual.mean(axis=-1, keepdims=True) - centred
    same = standard.argmax(axis=-1) == found.argmax(axis=-1)
    return Divergence(
        float(each.mean()),
        float(each.std() / np.sqrt(len(each))),
        float(np.median(each)),
        float(each.max()),
        float(same.mean()),
        float((error**2).sum() / (centred**2).sum()),
    )


def excess(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of `first` - `second` over the same positions, and its standard error."""
    difference = first - second
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def _log_softmax(rows: Logits) -> NDArray[np.float64]:
    shifted = rows.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
