"""Feed-forward parts: the dense GLU and the (latent) mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .checkpoint import Array
from .config import Config
from .functions import ROUTER_SUM_EPS, glu, linear, rms_norm, sigmoid

Weights = Callable[[str], Array]


def gated_mlp(x: Array, gate: Array, up: Array, down: Array, config: Config) -> Array:
    """down(glu(gate x, up x)): x [T, in] -> [T, in]."""
    hidden = glu(linear(x, gate), linear(x, up), config.situ_beta, config.situ_linear_beta)
    return linear(hidden, down)


def dense_mlp(x: Array, weight: Weights, config: Config) -> Array:
    gate, up, down = (weight(f"{part}_proj.weight") for part in ("gate", "up", "down"))
    return gated_mlp(x, gate, up, down, config)


def route(x: Array, gate: Array, bias: Array, config: Config) -> tuple[NDArray[np.int64], Array, Array]:
    """Selected experts [T, k], their weights [T, k], and the margin [T] of the selection.

    The bias only takes part in the selection; the weights use the unbiased scores. Equal scores go to the
    lower id. The margin is the gap between the last selected and the best rejected score.
    """
    scores = sigmoid(linear(x, gate))
    biased = scores + bias
    order = np.argsort(-biased, axis=-1, kind="stable")
    chosen = order[:, : config.experts_per_token]
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if config.renormalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + ROUTER_SUM_EPS)
    ranked = np.take_along_axis(biased, order, axis=-1)
    last = config.experts_per_token - 1
    margin = ranked[:, last] - ranked[:, last + 1] if ranked.shape[1] > last + 1 else np.full(len(x), np.inf)
    return chosen, weights * config.routed_scaling_factor, margin


def moe(x: Array, weight: Weights, config: Config, trace: dict[str, Array]) -> Array:
    """x [T, H] (normed) -> [T, H]; fills `trace` with the experts, weights and margin of the routing.

    Router and shared experts read x itself. With a latent size the routed experts read its projection, and
    the norm follows the weighted sum, before the projection back.
    """
    chosen, gains, margin = route(x, weight("gate.weight"), weight("gate.e_score_correction_bias"), config)
    trace.update(experts=chosen.astype(np.float64), expert_weights=gains, router_margin=margin)
    expert_in = linear(x, weight("routed_expert_down_proj.weight")) if config.latent_size else x
    y = np.zeros_like(expert_in)
    for expert in np.unique(chosen):
        rows, slots = np.nonzero(chosen == expert)
        w1, w3, w2 = (weight(f"experts.{expert}.{part}.weight") for part in ("w1", "w3", "w2"))
        y[rows] += gains[rows, slots, None] * gated_mlp(expert_in[rows], w1, w3, w2, config)
    if config.latent_size:
        if config.latent_norm:
            y = rms_norm(y, weight("routed_expert_norm.weight"), config.rms_norm_eps)
        y = linear(y, weight("routed_expert_up_proj.weight"))
    if config.num_shared_experts:
        y = y + dense_mlp(x, lambda name: weight(f"shared_experts.{name}"), config)
    return y
