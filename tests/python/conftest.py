"""Fixtures of the Python tests: the shipped checkpoint as GGUF, and models on it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from convert.cli import main as convert
from llama_k3 import Model, Tokenizer
from tests.conftest import CheckpointFactory


@pytest.fixture(scope="session")
def tiny_gguf(trained_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained tiny Kimi-K3."""
    out = tmp_path_factory.mktemp("gguf") / "tiny-k3.gguf"
    assert convert([str(trained_checkpoint), "--outfile", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def linear_gguf(tiny_checkpoint: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Kimi-Linear, with its control tokens."""
    out = tmp_path_factory.mktemp("gguf") / "linear.gguf"
    assert convert([str(tiny_checkpoint("kimi-linear")), "--outfile", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def model(tiny_gguf: Path) -> Iterator[Model]:
    with Model(tiny_gguf, n_threads=2) as opened:
        yield opened


@pytest.fixture(scope="session")
def tokenizer(model: Model) -> Tokenizer:
    return model.tokenizer


@pytest.fixture(scope="session")
def ranks(trained_checkpoint: Path) -> dict[bytes, int]:
    """Token bytes and ranks as the checkpoint's tiktoken.model has them."""
    lines = (trained_checkpoint / "tiktoken.model").read_text().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
