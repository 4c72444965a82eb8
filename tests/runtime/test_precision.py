"""Cache types and weight types: stated tolerances against the float64 reference of the same stored weights."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compare import assert_close, difference
from tests.runtime.conftest import Case, CaseFactory

EXACT = 2e-4
COUNT = 130


def decode_all(case: Case, kv_type: str) -> NDArray[np.float32]:
    with case.open() as model, model.context(n_ctx=COUNT, kv_type=kv_type, n_ubatch=50) as context:
        found: NDArray[np.float32] = context.decode(case.tokens, logits="all")
    return found


@pytest.mark.parametrize("arch", ["k3", "kimi-linear"])
def test_stored_weights_exact_in_reference_form(
    arch: str, make_case: CaseFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BF16 matrices, and for K3 MXFP4 experts bit for bit from the checkpoint: only float32 rounding is left."""
    case = make_case(arch, count=COUNT)
    monkeypatch.setenv("LLAMA_K3_OPS", "reference")
    assert_close(decode_all(case, "f32"), case.logits, max_abs=EXACT, argmax=True)
