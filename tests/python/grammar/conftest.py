"""Fixtures: compilers for the vocabularies of both models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_k3.grammar import GrammarCompiler

from llama_k3 import Model, Tokenizer


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    """For Kimi-K3's chat."""
    return GrammarCompiler(tokenizer, "kimi-k3")


@pytest.fixture(scope="session")
def linear_tokenizer(linear_gguf: Path) -> Iterator[Tokenizer]:
    with Model(linear_gguf, n_threads=1) as model:
        yield model.tokenizer


@pytest.fixture(scope="session")
def linear_compiler(linear_tokenizer: Tokenizer) -> GrammarCompiler:
    """For Kimi-K2's chat."""
    return GrammarCompiler(linear_tokenizer, "kimi-linear")
