"""matmul: every weight type against float64 products of the dequantised weights (gguf's own dequantiser)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, RunOp, Weight, normal

# cols, rows, tokens
SHAPES = [(32, 1, 1), (32, 3, 2), (64, 5, 17), (128, 35, 12), (288, 7, 33), (1056, 100, 3)]
# Stock ggml and the fast kernels round activations: to BF16, or to 8 bits per block of 32.
STOCK_NMSE = {"F32": 1e-12, "F16": 1e-6, "BF16": 2e-5, "Q8_0": 1e-4, "MXFP4": 1e-4}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", STOCK_NMSE)
def test_plain(run_op: RunOp, kind: str, shape: tuple[int, int, int]) -> None:
    cols, rows, tokens = shape
    weight, x = Weight(normal((rows, cols), 1), kind), normal((tokens, cols), 2)
    wanted = x.astype(np.float64) @ weight.values.T
    assert_close(run_op("matmul", "reference", [], [weight, x])[0], wanted, nmse=1e-12)
    for form in ("stock", *FAST):
        found = run_op("matmul", form, [], [weight, x])[0]
        assert_close(found.reshape(wanted.shape), wanted, nmse=STOCK_NMSE[kind], what=form)


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("kind", STOCK_NMSE)
@pytest.mark.parametrize("cols", [128, 1056])
def test_company_cuts_and_threads_change_no_bit(run_op: RunOp, cols: int, kind: str, form: str) -> None:
    """Counts of tokens on both sides of each change of kernel; an odd number of rows."""
    rows, tokens = 51, 150
    weight, x = Weight(normal((rows, cols), 1), kind), normal((tokens, cols), 2)
    whole = run_op("matmul", form, [], [weight, x])[0]
    for first, n in ((0, 1), (7, 2), (20, 8), (28, 11), (39, 12), (51, 17), (68, 20), (88, 62), (149, 1)):
        for threads in (1, 3):
            part = run_op("matmul", form, [], [weight, x[first : first + n]], threads)[0]
            assert np.array_equal(part.reshape(n, rows), whole[first : first + n]), (first, n, threads)


@pytest.mark.parametrize("form", ["stock", *FAST])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_group_of_matrices(run_op: RunOp, form: str, tokens: int) -> None:
    kinds = {"F32": 7, "BF16": 64, "Q8_0": 100, "MXFP4": 16, "F16": 1}
    weights = [Weight(normal((rows, 96), 1), kind) for kind, rows in kinds.items()]
    x = normal((tokens, 96), 2)
    for kind, weight, found in zip(
        kinds, weights, run_op("matmul_group", form, [5], [*weights, x], threads=3), strict=True
    ):
        wanted = x.astype(np.float64) @ weight.values.T
        assert_close(found.reshape(wanted.shape), wanted, nmse=STOCK_NMSE[kind], what=kind)


@pytest.mark.parametrize("form", ["stock", *FAST])
@pytest.mark.parametrize("kind", STOCK_NMSE)
@pytest.mark.parametrize(("heads", "rows", "tokens"), [(1, 16, 1), (3, 40, 5), (96, 24, 1), (5, 100, 20)])
@pytest.mark.parametrize("merged", [False, True])
def test_a_matrix_for_each_head(
    run_op: RunOp, form: str, kind: str, heads: int, rows: int, tokens: int, merged: bool
) -> None:
    weight, x = Weight(normal((heads, rows, 64), 1), kind), normal((heads, tokens, 64), 2)
    wanted = np.einsum("hmk,htk->htm", weight.values, x.astype(np.float64))
    if merged:
        wanted = np.swapaxes(wanted, 0, 1).reshape(tokens, -1)
    found = run_op("matmul_heads", form, [merged], [weight, x], threads=3)[0]
    assert_close(found.reshape(wanted.shape), wanted, nmse=STOCK_NMSE[kind])


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
    for form in FAST:
        for tokens in (2, 20):
            found = run_op("matmul", form, [], [weight, np.tile(x, (tokens // 2, 1))])[0]
            assert_close(found, np.tile(wanted, (tokens // 2, 1)), nmse=1e-4, what=form)
