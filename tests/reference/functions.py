"""Small functions that several layers share."""

from __future__ import annotations

import numpy as np

from .checkpoint import Array

# Epsilon of q_a_layernorm and kv_a_layernorm: they are built with the class default, not rms_norm_eps.
LORA_NORM_EPS = 1e-6
# Epsilon inside the root of the q/k normalisation of KDA, added to the sum of squares (not to the mean).
L2_NORM_EPS = 1e-6
# Guards the division by the sum of the selected router scores.
ROUTER_SUM_EPS = 1e-20


def linear(x: Array, weight: Array) -> Array:
    """[T, in] by a stored [out, in] matrix -> [T, out]; no layer of this family has a bias."""
    return x @ weight.T


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Over the last axis: x / sqrt(mean(x^2) + eps) * weight."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def l2_norm(x: Array) -> Array:
    """Over the last axis: x / sqrt(sum(x^2) + L2_NORM_EPS)."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_NORM_EPS)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), accurate and free of overflow for any x."""
    return np.exp(-np.logaddexp(0.0, -x))


def softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softmax(x: Array, axis: int) -> Array:
    shifted = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return shifted / np.sum(shifted, axis=axis, keepdims=True)


def situ_glu(gate: Array, up: Array, beta: float, linear_beta: float | None) -> Array:
    """SiTU: SiLU with its linear factor bent to at most `beta`, and `up` bent to at most `linear_beta`.

    [beta tanh(gate / beta) sigmoid(gate)] * [linear_beta tanh(up / linear_beta)]; the second bend is absent
    when linear_beta is None or not positive.
    """
    if linear_beta is not None and linear_beta > 0:
        up = linear_beta * np.tanh(up / linear_beta)
    return beta * np.tanh(gate / beta) * sigmoid(gate) * up


def glu(gate: Array, up: Array, situ_beta: float | None, situ_linear_beta: float | None) -> Array:
    """SiTU for Kimi-K3, SwiGLU (situ_beta None) for Kimi-Linear."""
    if situ_beta is None:
        return silu(gate) * up
    return situ_glu(gate, up, situ_beta, situ_linear_beta)
