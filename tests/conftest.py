"""Fixtures that all tests share: tiny checkpoints, built once per run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.make_tiny_checkpoint import write_checkpoint
from tests.native import build_sanitized

TESTS = Path(__file__).parent

CheckpointFactory = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFactory:
    """tiny_checkpoint(arch, seed=1, **options) -> folder; the arguments are those of `write_checkpoint`.

    Equal arguments give the same folder, so tests must not change it.
    """
    built: dict[str, Path] = {}

    def build(arch: str, seed: int = 1, **options: Any) -> Path:
        key = repr((arch, seed, sorted(options.items())))
        if key not in built:
            folder = tmp_path_factory.mktemp(arch)
            write_checkpoint(folder, arch, seed, **options)
            built[key] = folder
        return built[key]

    return build


@pytest.fixture(scope="session")
def trained_checkpoint() -> Path:
    """The small trained Kimi-K3 that the repository ships, in the HF format with MXFP4 experts."""
    return TESTS / "data" / "tiny-k3"


@pytest.fixture(scope="session")
def sanitized() -> Path:
    """Folder of the C test programs, built with sanitizers."""
    return build_sanitized()
