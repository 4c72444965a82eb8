"""Sampler: each filter by its definition, the draw by its frequencies, the same seed by the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import llama_k3
from llama_k3 import Sampler

OPEN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
LOGITS = np.log(np.array([0.05, 0.4, 0.02, 0.3, 0.2, 0.03], dtype=np.float32))


def drawn(logits: NDArray[np.float32], count: int = 4000, **params: Any) -> NDArray[np.float64]:
    """Share of each token among `count` draws."""
    with Sampler(**{**OPEN, "seed": 11, **params}) as sampler:
        tokens = [sampler.sample(logits) for _ in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


def expected(keep: list[int], temperature: float = 1.0) -> NDArray[np.float64]:
    p = np.zeros(len(LOGITS))
    p[keep] = np.exp(LOGITS[keep].astype(np.float64) / temperature)
    return p / p.sum()


@pytest.mark.parametrize(
    ("params", "keep"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_k": 100}, [0, 1, 2, 3, 4, 5]),
        ({"top_p": 0.5}, [1, 3]),
        ({"top_p": 0.0}, [1]),
        ({"top_p": 0.92}, [1, 3, 4, 0]),
        ({"min_p": 0.45}, [1, 3, 4]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 4, "top_p": 0.9, "min_p": 0.6}, [1, 3]),
    ],
)
def test_filters_keep_what_they_define(params: dict[str, Any], keep: list[int]) -> None:
    shares = drawn(LOGITS, **params)
    assert set(np.nonzero(shares)[0]) == set(keep)
    # six standard deviations of a share among 4000 draws
    assert np.abs(shares - expected(keep)).max() < 6 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("params", [{"top_k": 2}, {"top_p": 0.5}])
def test_of_equal_logits_the_lower_ids_stay(params: dict[str, Any]) -> None:
    """Four times 1/4: two of them reach top_p exactly."""
    assert np.nonzero(drawn(np.zeros(4, np.float32), count=200, **params))[0].tolist() == [0, 1]


def test_temperature_comes_after_the_filters() -> None:
    shares = drawn(LOGITS, temperature=3.0, top_p=0.5)
    assert np.abs(shares - expected([1, 3], 3.0)).max() < 6 * 0.5 / np.sqrt(4000)


def test_temperature_zero_takes_the_largest_and_the_lower_id_of_equals() -> None:
    with Sampler(temperature=0.0) as sampler:
        assert sampler.sample(np.array([1.0, 3.0, 3.0, 2.0], dtype=np.float32)) == 1


def test_seed_decides() -> None:
    runs = []
    for seed in (5, 5, 6, 5 + 2**32):
        with Sampler(**{**OPEN, "seed": seed}) as sampler:
            runs.append([sampler.sample(LOGITS) for _ in range(50)])
    assert runs[0] == runs[1] != runs[2]
    assert runs[3] != runs[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_are_refused(bad: float) -> None:
    with Sampler(**OPEN) as sampler, pytest.raises(llama_k3.NonFiniteError, match="token 2"):
        sampler.sample(np.array([0.0, 1.0, bad], dtype=np.float32))


@pytest.mark.parametrize(
    "params", [{"temperature": -1.0}, {"top_p": np.nan}, {"min_p": 1.5}, {"min_p": -0.1}]
)
def test_parameters_out_of_range_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(llama_k3.ArgumentError, match=next(iter(params))):
        Sampler(**{**OPEN, **params})
