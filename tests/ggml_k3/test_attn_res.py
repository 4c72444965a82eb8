"""attn_res: the mix by its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import RunOp, normal

EPS = 1e-5


@pytest.mark.parametrize("n_bank", [0, 1, 2, 8])
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (5, 100)])
def test_against_definition(run_op: RunOp, n_bank: int, tokens: int, width: int) -> None:
    sources = [normal((tokens, width), seed, 10.0 ** (seed % 3 - 1)) for seed in range(n_bank + 1)]
    score = normal((width,), 99, 0.3)
    stack = np.stack(sources).astype(np.float64)
    keys = stack / np.sqrt(np.mean(stack**2, axis=-1, keepdims=True) + EPS)
    scores = keys @ score.astype(np.float64)
    weights = np.exp(scores - scores.max(axis=0)) / np.exp(scores - scores.max(axis=0)).sum(axis=0)
    wanted = np.sum(weights[:, :, None] * stack, axis=0)
    assert_close(run_op("attn_res", "stock", [EPS], [*sources, score])[0], wanted, nmse=1e-12)
