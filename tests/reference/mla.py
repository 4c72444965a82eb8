"""Multi-head latent attention without positional encoding, plain and absorbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .checkpoint import Array
from .config import Config
from .functions import LORA_NORM_EPS, linear, rms_norm, sigmoid, softmax


@dataclass
class MlaState:
    """The cache of one sequence in one MLA layer, a row per token, shared by all heads.

    latent: [S, kv_lora_rank], after its norm. k_rot: [S, rope_dim], neither normed nor rotated.
    """

    latent: Array
    k_rot: Array


def new_mla_state(config: Config) -> MlaState:
    return MlaState(np.empty((0, config.kv_lora_rank)), np.empty((0, config.rope_dim)))


def causal_softmax(scores: Array) -> Array:
    """[h, T, S] -> [h, T, S]; the T queries are the last T of the S positions."""
    tokens, positions = scores.shape[1:]
    visible = np.tril(np.ones((tokens, positions), dtype=bool), positions - tokens)
    return softmax(np.where(visible, scores, -np.inf), axis=-1)


def attention_plain(q: Array, state: MlaState, kv_b: Array, nope_dim: int) -> Array:
    """Keys and values of every head are expanded from the latent.

    q [T, h, nope+rope], kv_b [h, nope+v, rank] -> [T, h, v].
    """
    expanded = np.einsum("sr,hdr->shd", state.latent, kv_b)
    k_nope, v = expanded[:, :, :nope_dim], expanded[:, :, nope_dim:]
    k_rot = np.broadcast_to(state.k_rot[:, None, :], (*k_nope.shape[:2], state.k_rot.shape[1]))
    k = np.concatenate([k_nope, k_rot], axis=-1)
    weights = causal_softmax(np.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5)
    return np.einsum("hts,shd->thd", weights, v)


def attention_absorbed(q: Array, state: MlaState, kv_b: Array, nope_dim: int) -> Array:
    """The same result with the expansion moved to queries and outputs: all heads share the cached rows."""
    key_part, value_part = kv_b[:, :nope_dim], kv_b[:, nope_dim:]
    q_latent = np.einsum("thd,hdr->thr", q[:, :, :nope_dim], key_part)
    scores = np.einsum("thr,sr->hts", q_latent, state.latent)
    scores += np.einsum("thd,sd->hts", q[:, :, nope_dim:], state.k_rot)
    weights = causal_softmax(scores * q.shape[-1] ** -0.5)
    latent_out = np.einsum("hts,sr->thr", weights, state.latent)
    return np.einsum("thr,hdr->thd", latent_out, value_part)


ATTENTIONS = {"plain": attention_plain, "absorbed": attention_absorbed}


def mla_layer(x: Array, weight: Callable[[str], Array], config: Config, state: MlaState, form: str) -> Array:
    """x [T, H] (normed) -> [T, H]; `weight` reads tensors of this layer's self_attn; appends to `state`."""
    heads, rank = config.mla_heads, config.kv_lora_rank
    if config.q_lora_rank:
        q_latent = rms_norm(
            linear(x, weight("q_a_proj.weight")), weight("q_a_layernorm.weight"), LORA_NORM_EPS
        )
        q = linear(q_latent, weight("q_b_proj.weight"))
    else:
        q = linear(x, weight("q_proj.weight"))
    q = q.reshape(len(x), heads, config.nope_dim + config.rope_dim)

    compressed = linear(x, weight("kv_a_proj_with_mqa.weight"))
    latent = rms_norm(compressed[:, :rank], weight("kv_a_layernorm.weight"), LORA_NORM_EPS)
    state.latent = np.concatenate([state.latent, latent])
    state.k_rot = np.concatenate([state.k_rot, compressed[:, rank:]])

    kv_b = weight("kv_b_proj.weight").reshape(heads, config.nope_dim + config.v_dim, rank)
    out: Array = ATTENTIONS[form](q, state, kv_b, config.nope_dim).reshape(len(x), -1)
    if config.mla_output_gate:
        out = out * sigmoid(linear(x, weight("g_proj.weight")))
    return linear(out, weight("o_proj.weight"))
