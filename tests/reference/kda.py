"""Kimi Delta Attention: short convolutions, decay gate, delta rule (recurrent and chunked), gated output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .checkpoint import Array
from .config import Config
from .functions import l2_norm, linear, rms_norm, sigmoid, silu, softplus

CHUNK = 64


@dataclass
class KdaState:
    """What one sequence carries from token to token in one KDA layer.

    windows: for q, k and v the last (taps - 1) rows of the projection before the convolution, [taps-1, h*D],
        oldest first, zero before the sequence starts.
    memory: [h, D (key channel), D (value channel)], zero at the start.
    """

    windows: dict[str, Array]
    memory: Array


def new_kda_state(config: Config, taps: int) -> KdaState:
    heads, dim = config.kda_heads, config.kda_head_dim
    windows: dict[str, Array] = {part: np.zeros((taps - 1, heads * dim)) for part in "qkv"}
    return KdaState(windows, np.zeros((heads, dim, dim)))


def short_conv(x: Array, window: Array, taps: Array) -> tuple[Array, Array]:
    """Causal depthwise convolution, then SiLU.

    x [T, P], window [W-1, P] (the rows before x), taps [P, W] with the current row's tap last
    -> (y [T, P], the next window).
    """
    rows = np.concatenate([window, x])
    width = taps.shape[1]
    y = sum(rows[tap : tap + len(x)] * taps[:, tap] for tap in range(width))
    return silu(np.asarray(y)), rows[len(rows) - (width - 1) :]


def decay_gate(z: Array, a_log: Array, lower_bound: float | None) -> Array:
    """Log decay g < 0 of every key channel: z [T, h, D], a_log [h] -> [T, h, D].

    Kimi-K3 (lower_bound -5): lower_bound * sigmoid(exp(a_log) z), another function than a clamp.
    Kimi-Linear (None): -exp(a_log) softplus(z).
    """
    rate = np.exp(a_log)[None, :, None]
    if lower_bound is None:
        return -rate * softplus(z)
    return lower_bound * sigmoid(rate * z)


def delta_rule_recurrent(
    q: Array, k: Array, v: Array, g: Array, beta: Array, memory: Array
) -> tuple[Array, Array]:
    """Token by token. q, k, v, g [T, h, D], beta [T, h], memory [h, D, D] -> (o [T, h, D], new memory).

    Order matters: decay first; the correction uses the decayed memory; the output uses the updated one.
    """
    out = np.empty_like(v)
    for t in range(len(q)):
        memory = np.exp(g[t])[:, :, None] * memory
        predicted = np.einsum("hkv,hk->hv", memory, k[t])
        correction = beta[t][:, None] * (v[t] - predicted)
        memory = memory + k[t][:, :, None] * correction[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", memory, q[t])
    return out, memory


def delta_rule_chunked(
    q: Array, k: Array, v: Array, g: Array, beta: Array, memory: Array, chunk: int = CHUNK
) -> tuple[Array, Array]:
    """The same result as `delta_rule_recurrent`, `chunk` tokens at a time (arXiv 2510.26692).

    The last chunk is filled up with zeros: zero keys write nothing and a zero log decay keeps the memory.
    """
    tokens = len(q)
    padding = -tokens % chunk
    rows = [np.pad(x, [(0, padding), *[(0, 0)] * (x.ndim - 1)]) for x in (q, k, v, g, beta)]
    out = []
    for start in range(0, tokens + padding, chunk):
        q, k, v, g, beta = (np.swapaxes(x[start : start + chunk], 0, 1) for x in rows)
        result, memory = delta_rule_one_chunk(q, k, v, g, beta, memory)
        out.append(np.swapaxes(result, 0, 1))
    return np.concatenate(out)[:tokens], memory


def delta_rule_one_chunk(
    q: Array, k: Array, v: Array, g: Array, beta: Array, memory: Array
) -> tuple[Array, Array]:
    """q, k, v, g [h, C, D], beta [h, C], memory [h, D, D] at the chunk's start -> (o [h, C, D], new memory).

    With G the running sum of g, token i sees key j through exp(G_i - G_j) <= 1. The difference is taken
    before exp: exp(-G_j) alone would overflow. Solving (I + A) [w, u] = beta [k exp(G), v], A strictly
    lower triangular, gives the corrections of all tokens of the chunk at once.
    """
    size = q.shape[1]
    total = np.cumsum(g, axis=1)
    earlier = np.tril(np.ones((size, size), dtype=bool))  # j <= i
    gap = total[:, :, None, :] - total[:, None, :, :]
    decay = np.exp(np.where(earlier[None, :, :, None], gap, -np.inf))  # [h, i, j, D]
    query_key = np.einsum("hijd,hjd->hij", q[:, :, None, :] * decay, k)
    key_key = np.einsum("hijd,hjd->hij", k[:, :, None, :] * decay, k)
    system = np.eye(size) + np.tril(beta[:, :, None] * key_key, -1)
    w = np.linalg.solve(system, beta[:, :, None] * k * np.exp(total))
    u = np.linalg.solve(system, beta[:, :, None] * v)
    correction = u - w @ memory
    out = (q * np.exp(total)) @ memory + query_key @ correction
    last = total[:, -1:, :]
    kept = np.swapaxes(np.exp(last), 1, 2) * memory
    return out, kept + np.swapaxes(k * np.exp(last - total), 1, 2) @ correction


DELTA_RULES = {"recurrent": delta_rule_recurrent, "chunked": delta_rule_chunked}


def kda_layer(x: Array, weight: Callable[[str], Array], config: Config, state: KdaState, form: str) -> Array:
    """x [T, H] (normed) -> [T, H]; `weight` reads tensors of this layer's self_attn; updates `state`."""
    heads, dim = config.kda_heads, config.kda_head_dim
    shape = (len(x), heads, dim)
    convolved = {}
    for part in "qkv":
        taps = weight(f"{part}_conv1d.weight").reshape(heads * dim, -1)
        projected = linear(x, weight(f"{part}_proj.weight"))
        convolved[part], state.windows[part] = short_conv(projected, state.windows[part], taps)
    q = l2_norm(convolved["q"].reshape(shape)) * dim**-0.5
    k = l2_norm(convolved["k"].reshape(shape))
    v = convolved["v"].reshape(shape)

    z = linear(linear(x, weight("f_a_proj.weight")), weight("f_b_proj.weight")) + weight("dt_bias").reshape(
        -1
    )
    # One rate per head; K3 pads the stored vector with zeros to 128 entries.
    a_log = weight("A_log").reshape(-1)[:heads]
    g = decay_gate(z.reshape(shape), a_log, config.gate_lower_bound)
    beta = sigmoid(linear(x, weight("b_proj.weight")))

    out, state.memory = DELTA_RULES[form](q, k, v, g, beta, state.memory)
    out = rms_norm(out, weight("o_norm.weight"), config.rms_norm_eps)
    if config.full_rank_gate:
        gate = linear(x, weight("g_proj.weight"))
    else:
        gate = linear(linear(x, weight("g_a_proj.weight")), weight("g_b_proj.weight"))
    out = out.reshape(len(x), -1) * sigmoid(gate)
    return linear(out, weight("o_proj.weight"))
