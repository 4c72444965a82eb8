"""get_rows, norm, add and gate against their definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, RunOp, Weight, normal

FORMS = pytest.mark.parametrize("form", ["stock", *FAST])
SHAPES = pytest.mark.parametrize("shape", [(1, 1), (1, 63), (5, 100), (40, 1000)], ids=str)
EPS = 1e-5


@FORMS
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "MXFP4"])
@pytest.mark.parametrize("count", [1, 300])
def test_get_rows(run_op: RunOp, form: str, kind: str, count: int) -> None:
    table = Weight(normal((50, 96), 1), kind)
    ids = np.random.default_rng(2).integers(0, 50, count).astype(np.int32)
    found = run_op("get_rows", form, [], [table, ids])[0]
    assert_close(found.reshape(count, 96), table.values[ids], max_abs=0.0)


@FORMS
@SHAPES
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_norm(run_op: RunOp, form: str, shape: tuple[int, int], scale: float) -> None:
    x, weight = normal(shape, 1, scale), normal(shape[1:], 2)
    rows = x.astype(np.float64)
    wanted = rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + EPS) * weight
    assert_close(run_op("norm", form, [EPS], [x, weight])[0].reshape(shape), wanted, nmse=1e-12)


@FORMS
@SHAPES
def test_add(run_op: RunOp, form: str, shape: tuple[int, int]) -> None:
    x, y = normal(shape, 1), normal(shape, 2)
    assert np.array_equal(run_op("add", form, [], [x, y])[0].reshape(shape), x + y)


@FORMS
@SHAPES
def test_gate(run_op: RunOp, form: str, shape: tuple[int, int]) -> None:
    x, gate = normal(shape, 1), normal(shape, 2, 20.0)
    wanted = x / (1 + np.exp(-gate.astype(np.float64)))
    assert_close(run_op("gate", form, [], [x, gate])[0].reshape(shape), wanted, nmse=1e-12)
