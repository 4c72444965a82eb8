"""The choice of kernels: every variant of this machine can be forced, and unknown ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ggml_k3.conftest import cpu_variants
from tests.native import run


def chosen(sanitized: Path, variant: str) -> str:
    return run(sanitized / "run_op", "cpu", environment={"GGML_K3_CPU": variant})


@pytest.mark.parametrize("variant", cpu_variants())
def test_a_variant_can_be_forced(sanitized: Path, variant: str) -> None:
    assert chosen(sanitized, variant) == variant


def test_the_best_is_chosen(sanitized: Path) -> None:
    assert chosen(sanitized, "") == cpu_variants()[-1]


@pytest.mark.parametrize("variant", ["sse9", "AVX2", "neon" if "neon" not in cpu_variants() else "avx512"])
def test_other_names_are_refused(sanitized: Path, variant: str) -> None:
    assert chosen(sanitized, variant) == "none"
