"""router: selection by biased scores, unbiased weights, ties to the lower id."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, RunOp, normal

FORMS = pytest.mark.parametrize("form", ["stock", *FAST])


@FORMS
@pytest.mark.parametrize(
    ("experts", "used", "tokens"), [(1, 1, 1), (8, 3, 5), (8, 8, 2), (63, 7, 9), (896, 16, 4)]
)
@pytest.mark.parametrize(("normalise", "scale"), [(True, 1.0), (False, 2.446), (True, 2.446)])
def test_against_definition(
    run_op: RunOp, form: str, experts: int, used: int, tokens: int, normalise: bool, scale: float
) -> None:
    logits, bias = normal((tokens, experts), 1, 2.0), normal((experts,), 2, 0.3)
    ids, weights = run_op("router", form, [used, normalise, scale], [logits, bias])
    probs = 1 / (1 + np.exp(-logits.astype(np.float64)))
    wanted_ids = np.argsort(-(probs + bias), axis=1, kind="stable")[:, :used]
    chosen = np.take_along_axis(probs, wanted_ids, axis=1)
    wanted = chosen * scale / (chosen.sum(axis=1, keepdims=True) if normalise else 1.0)
    assert np.array_equal(ids, wanted_ids)
    assert_close(weights, wanted, nmse=1e-12)


@FORMS
def test_ties_go_to_the_lower_id(run_op: RunOp, form: str) -> None:
    logits = np.zeros((2, 10), np.float32)
    logits[1, 7] = 1.0
    ids, _ = run_op("router", form, [4, True, 1.0], [logits, np.zeros(10, np.float32)])
    assert ids.tolist() == [[0, 1, 2, 3], [7, 0, 1, 2]]


@FORMS
def test_scores_that_underflow_give_zero_weights(run_op: RunOp, form: str) -> None:
    logits = np.full((1, 4), -200.0, np.float32)
    _, weights = run_op("router", form, [2, True, 1.0], [logits, np.zeros(4, np.float32)])
    assert weights.tolist() == [[0.0, 0.0]]
