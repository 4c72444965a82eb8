"""attn_res: the mix and the norm behind it by their definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, RunOp, normal

EPS = 1e-5


@pytest.mark.parametrize("form", ["stock", *FAST])
@pytest.mark.parametrize("n_bank", [0, 1, 2, 8, 11])
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (5, 100), (3, 7168)])
def test_against_definition(run_op: RunOp, form: str, n_bank: int, tokens: int, width: int) -> None:
    sources = [normal((tokens, width), seed, 10.0 ** (seed % 3 - 1)) for seed in range(n_bank + 1)]
    score, weight = normal((width,), 99, 0.3), normal((width,), 98)
    stack = np.stack(sources).astype(np.float64)
    keys = stack / np.sqrt(np.mean(stack**2, axis=-1, keepdims=True) + EPS)
    scores = keys @ score.astype(np.float64)
    weights = np.exp(scores - scores.max(axis=0)) / np.exp(scores - scores.max(axis=0)).sum(axis=0)
    mix = np.sum(weights[:, :, None] * stack, axis=0)
    wanted = mix / np.sqrt(np.mean(mix**2, axis=-1, keepdims=True) + EPS) * weight
    assert_close(run_op("attn_res", form, [EPS], [*sources, score, weight])[0], wanted, nmse=1e-12)
