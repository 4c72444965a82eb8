"""How large the random weights are, tensor by tensor.

Projections keep the size of their input, so that logits come out of order 1. The decay gates of a head's
channels forget over a few to a few hundred tokens; with that and normalised keys, states stay bounded at any
position. Router scores are spread normally.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convert.config import HyperParameters
from convert.tensors import TensorSpec

from .blocks import Source

CONV_RMS = 0.5
NORM_SPREAD = 0.05
ROUTER_BIAS_RMS = 0.02
LOGITS_RMS = 1.5
# Bias of the decay gate, before its sigmoid (K3, times -5) or softplus (Kimi-Linear, times -1).
DECAY_BIAS = (-8.0, -2.0)


def matrix_rms(spec: TensorSpec) -> float:
    """For matrices: one over the root of the number of inputs, with the exceptions below."""
    part = spec.name.split(".")[-2]
    if part == "token_embd":
        return 1.0
    if part == "output":
        return float(LOGITS_RMS / np.sqrt(spec.ne[0]))
    if part == "attn_k_b":
        # Stored transposed, {nope, rank, head}: a key is made from a row of `rank` values.
        return float(1 / np.sqrt(spec.ne[1]))
    return float(1 / np.sqrt(spec.ne[0]))


def f32_values(spec: TensorSpec, hp: HyperParameters, source: Source) -> npt.NDArray[np.float32]:
    """Values of a tensor that is F32 in every file."""
    count = int(np.prod(spec.ne))
    numbers = source.numbers
    if spec.name.endswith("ssm_a"):
        values = -np.exp(numbers.uniform(-0.5, 0.5, count))
    elif spec.name.endswith("ssm_dt.bias"):
        values = numbers.uniform(*DECAY_BIAS, count)
    elif spec.name.endswith("exp_probs_b.bias"):
        values = ROUTER_BIAS_RMS * numbers.standard_normal(count)
    elif spec.name.endswith("norm.weight"):
        values = 1 + NORM_SPREAD * numbers.standard_normal(count)
    elif "ssm_conv1d" in spec.name:
        values = CONV_RMS * numbers.standard_normal(count)
    elif spec.name.endswith(("res_score.weight", "ffn_gate_inp.weight")):
        values = numbers.standard_normal(count) / np.sqrt(hp.n_embd)
    else:
        raise ValueError(f"{spec.name}: no size is known for its values")
    return values.astype(np.float32)
