"""matmul: every weight type against float64 products of the dequantised weights (gguf's own dequantiser)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import RunOp, Weight, normal

SHAPES = [(32, 1, 1), (32, 3, 2), (64, 5, 17), (288, 7, 33), (1056, 100, 3)]  # cols, rows, tokens
# Stock ggml rounds activations: to BF16, or to 8 bits per block of 32.
STOCK_NMSE = {"F32": 1e-12, "F16": 1e-6, "BF16": 2e-5, "Q8_0": 1e-4, "MXFP4": 1e-4}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", STOCK_NMSE)
def test_plain(run_op: RunOp, kind: str, shape: tuple[int, int, int]) -> None:
    cols, rows, tokens = shape
    weight, x = Weight(normal((rows, cols), 1), kind), normal((tokens, cols), 2)
    wanted = x.astype(np.float64) @ weight.values.T
    assert_close(run_op("matmul", "reference", [], [weight, x])[0], wanted, nmse=1e-12)
    assert_close(run_op("matmul", "stock", [], [weight, x])[0], wanted, nmse=STOCK_NMSE[kind])


@pytest.mark.parametrize("form", ["stock", "reference"])
def test_batches_of_heads(run_op: RunOp, form: str) -> None:
    weight, x = Weight(normal((3, 40, 24), 1), "F32"), normal((3, 5, 24), 2)
    wanted = np.einsum("hmk,htk->htm", weight.values, x.astype(np.float64))
    assert_close(run_op("matmul", form, [], [weight, x])[0], wanted, nmse=1e-12)


@pytest.mark.parametrize("slots", ["one row for all", "a row each"])
@pytest.mark.parametrize("kind", STOCK_NMSE)
def test_by_expert(run_op: RunOp, kind: str, slots: str) -> None:
    experts, rows, cols, used, tokens = 5, 33, 64, 3, 9
    weight = Weight(normal((experts, rows, cols), 1), kind)
    x = normal((tokens, 1 if slots == "one row for all" else used, cols), 2)
    ids = np.random.default_rng(3).integers(0, experts, (tokens, used)).astype(np.int32)
    wanted = np.einsum(
        "tsmk,tsk->tsm", weight.values[ids], np.broadcast_to(x, (tokens, used, cols)).astype(float)
    )
    assert_close(run_op("matmul_id", "reference", [], [weight, x, ids])[0], wanted, nmse=1e-12)
    assert_close(run_op("matmul_id", "stock", [], [weight, x, ids])[0], wanted, nmse=STOCK_NMSE[kind])


@pytest.mark.parametrize("scale", [0, 1, 2, 126, 127, 251, 252])
def test_extreme_mxfp4_scales(run_op: RunOp, scale: int) -> None:
    """E8M0 bytes up to 252: above, the largest code, 6, leaves fp32. Activations even the products out."""
    weight = Weight(normal((4, 32), 1), "MXFP4")
    weight.raw[:, 0] = scale
    codes = np.concatenate([weight.raw[:, 1:] & 15, weight.raw[:, 1:] >> 4], axis=1)
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.where(codes & 8, -1.0, 1.0) * magnitudes[codes & 7] * 2.0 ** (scale - 127)
    x = (normal((2, 32), 2).astype(np.float64) * 2.0 ** (100 - min(scale, 200))).astype(np.float32)
    wanted = x.astype(np.float64) @ values.T
    assert_close(run_op("matmul", "reference", [], [weight, x])[0], wanted, nmse=1e-12)
