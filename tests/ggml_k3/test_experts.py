"""experts: gate, up, activation, down and weighted sum against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, RunOp, Weight, normal
from tests.reference.functions import glu

# Activations are rounded twice on the way; see test_matmul.
STOCK_NMSE = {"F32": 1e-11, "BF16": 1e-4, "Q8_0": 1e-3, "MXFP4": 1e-3}


@pytest.mark.parametrize("kind", STOCK_NMSE)
@pytest.mark.parametrize(("used", "tokens"), [(1, 1), (3, 1), (3, 20), (6, 4), (2, 70)])
@pytest.mark.parametrize("beta", [4.0, None])
def test_against_definition(run_op: RunOp, kind: str, used: int, tokens: int, beta: float | None) -> None:
    experts, width, hidden = 6, 64, 96
    gate = Weight(normal((experts, hidden, width), 1, 0.2), kind)
    up = Weight(normal((experts, hidden, width), 2, 0.2), kind)
    down = Weight(normal((experts, width, hidden), 3, 0.2), kind)
    x, weights = normal((tokens, width), 4), np.abs(normal((tokens, used), 5))
    random = np.random.default_rng(6)
    ids = np.stack([random.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)
    rows = x.astype(np.float64)
    inner = glu(
        np.einsum("tsfw,tw->tsf", gate.values[ids], rows),
        np.einsum("tsfw,tw->tsf", up.values[ids], rows),
        beta,
        25.0,
    )
    wanted = np.einsum("tsf,tswf,ts->tw", inner, down.values[ids], weights.astype(np.float64))
    parameters = [beta is not None, beta or 0.0, 25.0]
    tensors = [gate, up, down, x, ids, weights]
    assert_close(run_op("experts", "reference", parameters, tensors)[0], wanted, nmse=1e-11)
    for form in ("stock", *FAST):
        found = run_op("experts", form, parameters, tensors)[0]
        assert_close(found, wanted, nmse=STOCK_NMSE[kind], what=form)
        if form != "stock":
            assert np.array_equal(run_op("experts", form, parameters, tensors, threads=3)[0], found)
            alone = [gate, up, down, x[-1:], ids[-1:], weights[-1:]]
            assert np.array_equal(run_op("experts", form, parameters, alone, threads=1)[0][0], found[-1])
