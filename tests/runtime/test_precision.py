"""Cache types and weight types: stated tolerances against the float64 reference of the same stored weights.

The router makes any rounding visible: a choice that is closer than the rounding flips and moves the logits by
whole units. Where activations are rounded (stock form: BF16 for BF16 weights, Q8_0 for MXFP4 and Q8_0)
the tokens are therefore picked with a wide router margin, and bounds are on the error ratio (nmse).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compare import assert_close
from tests.runtime.conftest import Case, CaseFactory

EXACT = 2e-4
COUNT = 60
WIDE_MARGIN = 0.04


def decode_all(case: Case, kv_type: str) -> NDArray[np.float32]:
    with case.open() as model, model.context(n_ctx=len(case.tokens), kv_type=kv_type, n_ubatch=25) as context:
        found: NDArray[np.float32] = context.decode(case.tokens, logits="all")
    return found


@pytest.fixture(params=["k3", "kimi-linear"])
def stored(request: pytest.FixtureRequest, make_case: CaseFactory) -> Case:
    """Both architectures as released: BF16 matrices, K3's experts in MXFP4 as in the checkpoint."""
    return make_case(request.param, count=COUNT, margin=WIDE_MARGIN)


def test_stored_weights_are_exact_in_reference_form(stored: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_K3_OPS", "reference")
    assert_close(decode_all(stored, "f32"), stored.logits, max_abs=EXACT, argmax=True)


@pytest.mark.parametrize(("kv_type", "nmse"), [("f16", 2e-6), ("bf16", 1e-5), ("q8_0", 2e-4)])
def test_cache_types(stored: Case, monkeypatch: pytest.MonkeyPatch, kv_type: str, nmse: float) -> None:
    monkeypatch.setenv("LLAMA_K3_OPS", "reference")
    found = assert_close(decode_all(stored, kv_type), stored.logits, nmse=nmse)
    assert found.nmse > EXACT**2 / 100, "the cache type shows no rounding: is it used at all?"


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "q8_0"])
def test_stock_form_with_stored_weights(stored: Case, kv_type: str) -> None:
    assert_close(decode_all(stored, kv_type), stored.logits, nmse=1e-2)


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "q8_0"])
def test_trained_checkpoint_keeps_every_greedy_token(trained: Case, kv_type: str) -> None:
    assert_close(decode_all(trained, kv_type), trained.logits, nmse=2e-4, argmax=True)


def test_trained_checkpoint_is_exact_in_reference_form(
    trained: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_K3_OPS", "reference")
    assert_close(decode_all(trained, "f32"), trained.logits, max_abs=EXACT, argmax=True)


def test_threads_do_not_change_a_bit_of_the_reference_form(
    trained: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_K3_OPS", "reference")
    rows = []
    for n_threads in (1, 2):
        with trained.open(n_threads) as model, model.context(n_ctx=32, kv_type="f32") as context:
            rows.append(context.decode(trained.tokens[:16], logits="all"))
    assert np.array_equal(rows[0], rows[1])


def test_quantised_matrices_run(make_case: CaseFactory) -> None:
    """--outtype q8_0 rounds the weights too, which the reference does not: only the ratio is bounded."""
    case = make_case(
        "kimi-linear", ("--outtype", "q8_0", "--experts", "q8_0"), count=COUNT, margin=WIDE_MARGIN
    )
    assert_close(decode_all(case, "f32"), case.logits, nmse=2e-2)
