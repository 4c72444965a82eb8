"""glu: SiTU and SwiGLU against the reference, over the range where tanh and sigmoid saturate."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, RunOp, normal
from tests.reference.functions import glu


@pytest.mark.parametrize("form", ["stock", *FAST])
@pytest.mark.parametrize(("beta", "linear_beta"), [(4.0, 25.0), (4.0, 0.0), (1.5, 3.0), (None, 0.0)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (7, 100)], ids=str)
def test_against_reference(
    run_op: RunOp, form: str, beta: float | None, linear_beta: float, shape: tuple[int, int]
) -> None:
    gate, up = normal(shape, 1, 8.0), normal(shape, 2, 30.0)
    gate.flat[0], up.flat[-1] = 80.0, -300.0
    wanted = glu(gate.astype(np.float64), up.astype(np.float64), beta, linear_beta)
    parameters = [beta is not None, beta or 0.0, linear_beta]
    assert_close(run_op("glu", form, parameters, [gate, up])[0], wanted, nmse=1e-12)
