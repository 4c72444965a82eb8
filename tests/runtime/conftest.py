"""Fixtures of the runtime tests: GGUF files of tiny checkpoints and their reference logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convert.cli import main as convert
from llama_k3 import Model
from tests.conftest import CheckpointFactory
from tests.reference import ReferenceModel, separated_tokens

LONGEST = 300


@dataclass(frozen=True)
class Case:
    """A checkpoint as GGUF, as reference model, and tokens on which no router decision is close."""

    gguf: Path
    reference: ReferenceModel
    tokens: NDArray[np.int64]
    logits: NDArray[np.float64]  # [len(tokens), n_vocab]

    def open(self, n_threads: int = 1) -> Model:
        return Model(self.gguf, n_threads=n_threads)


CaseFactory = Callable[..., Case]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def convert_to(checkpoint: Path, out: Path, *options: str) -> Path:
    assert convert([str(checkpoint), "--outfile", str(out), *options]) == 0
    return out


@pytest.fixture(scope="session")
def make_case(tiny_checkpoint: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> CaseFactory:
    """make_case(arch, converter options, count=LONGEST, seed=1, margin=1e-3, **checkpoint options) -> Case"""
    built: dict[str, Case] = {}

    def build(
        arch: str,
        options: tuple[str, ...] = (),
        count: int = LONGEST,
        seed: int = 1,
        margin: float = 1e-3,
        **checkpoint: Any,
    ) -> Case:
        key = repr((arch, options, count, seed, margin, sorted(checkpoint.items())))
        if key not in built:
            folder = tiny_checkpoint(arch, seed, **checkpoint)
            gguf = convert_to(folder, tmp_path_factory.mktemp("gguf") / f"{arch}.gguf", *options)
            reference = ReferenceModel(folder)
            tokens = separated_tokens(reference, count, seed, margin)
            built[key] = Case(gguf, reference, tokens, reference.forward(tokens))
        return built[key]

    return build


@pytest.fixture(scope="session", params=["k3", "kimi-linear"])
def exact(request: pytest.FixtureRequest, make_case: CaseFactory) -> Case:
    """Both architectures with every weight in F32."""
    return make_case(request.param, ("--outtype", "f32", "--experts", "f32"), dtype="f32", experts="f32")


@pytest.fixture(scope="session")
def trained(trained_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The shipped checkpoint as it is stored, and a text of its own vocabulary."""
    gguf = convert_to(trained_checkpoint, tmp_path_factory.mktemp("gguf") / "tiny-k3.gguf")
    reference = ReferenceModel(trained_checkpoint)
    tokens = np.random.default_rng(0).integers(0, 768, 200)
    return Case(gguf, reference, tokens, reference.forward(tokens))
