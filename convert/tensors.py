"""The table: for every part of a layer its GGUF tensors, their shapes, and where they come from.

Shapes of sources are in the checkpoint's order (rows first), shapes of GGUF tensors (`ne`) in ggml's order
(the fastest dimension first). Layers count from 0 here, as in tensor names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .config import KDA, MLA, SHORT_CONV, HyperParameters

Shape = tuple[int, ...]


class Transform(Enum):
    """What is done to the source values on their way to the GGUF tensor."""

    COPY = "copy"  # same values in the same order; the shape may gain or lose dimensions of 1
    RES_SCORE = "norm * proj"  # elementwise product of a residual mix's norm and projection weights
    NEG_EXP = "-exp"  # A_log -> -exp(A_log), cut to the head count
    KV_B_KEY = "kv_b keys, transposed"  # [head, nope + v, rank] -> [head, rank, nope]
    KV_B_VALUE = "kv_b values"  # [head, nope + v, rank] -> [head, v, rank]
    EXPERTS = "experts"  # one matrix per expert, stacked


class Role(Enum):
    """Which option decides a tensor's type."""

    MATRIX = "matrix"  # --outtype
    EXPERTS = "experts"  # --experts
    F32 = "f32"  # always F32


@dataclass(frozen=True)
class SourceSpec:
    """A checkpoint tensor: its name and the shapes it may have."""

    name: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class TensorSpec:
    """A GGUF tensor. For EXPERTS, `sources` holds one entry whose name has `{}` for the expert's number."""

    name: str
    ne: Shape
    role: Role
    transform: Transform
    sources: tuple[SourceSpec, ...]


def global_tensors(hp: HyperParameters) -> list[TensorSpec]:
    """Tensors outside the layers."""
    specs = [
        _matrix("token_embd", "model.embed_tokens", hp.n_vocab, hp.n_embd),
        _vector("output_norm.weight", "model.norm.weight", hp.n_embd),
        _matrix("output", "lm_head", hp.n_vocab, hp.n_embd),
    ]
    if hp.attn_res_block is not None:
        specs.append(_res_score("output_res_score.weight", "model.output_attn_res", hp.n_embd))
    return specs


def layer_tensors(hp: HyperParameters, layer: int) -> list[TensorSpec]:
    """Every tensor of one layer. A `short_conv` layer has no tensors for its mixer: nothing defines them."""
    out, source = f"blk.{layer}", f"model.layers.{layer}"
    specs = [_vector(f"{out}.attn_norm.weight", f"{source}.input_layernorm.weight", hp.n_embd)]
    kind = hp.layer_kinds[layer]
    if kind == KDA:
        specs += _kda_tensors(hp, out, f"{source}.self_attn")
    elif kind == MLA:
        specs += _mla_tensors(hp, out, f"{source}.self_attn")
    else:
        assert kind == SHORT_CONV
    specs.append(_vector(f"{out}.ffn_norm.weight", f"{source}.post_attention_layernorm.weight", hp.n_embd))
    if hp.attn_res_block is not None:
        specs.append(_res_score(f"{out}.attn_res_score.weight", f"{source}.self_attention_res", hp.n_embd))
        specs.append(_res_score(f"{out}.ffn_res_score.weight", f"{source}.mlp_res", hp.n_embd))
    if layer < hp.n_layer_dense:
        specs += _dense_tensors(hp, out, f"{source}.mlp")
    else:
        specs += _moe_tensors(hp, out, f"{source}.block_sparse_moe")
    return specs


def model_tensors(hp: HyperParameters) -> list[TensorSpec]:
    """Every tensor of the model, in the order of the output file."""
    first, *last = global_tensors(hp)
    layers = [spec for layer in range(hp.n_layer) for spec in layer_tensors(hp, layer)]
    return [first, *layers, *last]


def _kda_tensors(hp: HyperParameters, out: str, source: str) -> list[TensorSpec]:
    width, head = hp.kda_width, hp.kda_head_dim
    specs = [_matrix(f"{out}.attn_{x}", f"{source}.{x}_proj", width, hp.n_embd) for x in "qkv"]
    specs += [_conv(hp, f"{out}.ssm_conv1d_{x}.weight", f"{source}.{x}_conv1d.weight") for x in "qkv"]
    specs += [
        _matrix(f"{out}.ssm_f_a", f"{source}.f_a_proj", head, hp.n_embd),
        _matrix(f"{out}.ssm_f_b", f"{source}.f_b_proj", width, head),
        _matrix(f"{out}.ssm_beta", f"{source}.b_proj", hp.n_head, hp.n_embd),
        _decay(hp, f"{out}.ssm_a", f"{source}.A_log"),
        _vector(f"{out}.ssm_dt.bias", f"{source}.dt_bias", width),
        _vector(f"{out}.ssm_norm.weight", f"{source}.o_norm.weight", head),
        _matrix(f"{out}.attn_output", f"{source}.o_proj", hp.n_embd, width),
    ]
    if hp.is_k3:
        specs.append(_matrix(f"{out}.ssm_g", f"{source}.g_proj", width, hp.n_embd))
    else:
        specs.append(_matrix(f"{out}.ssm_g_a", f"{source}.g_a_proj", head, hp.n_embd))
        specs.append(_matrix(f"{out}.ssm_g_b", f"{source}.g_b_proj", width, head))
    return specs


def _mla_tensors(hp: HyperParameters, out: str, source: str) -> list[TensorSpec]:
    rank, queries = hp.kv_lora_rank, hp.n_head * hp.qk_head_dim
    values = hp.n_head * hp.v_head_dim
    specs = []
    if hp.q_lora_rank is None:
        specs.append(_matrix(f"{out}.attn_q", f"{source}.q_proj", queries, hp.n_embd))
    else:
        specs.append(_matrix(f"{out}.attn_q_a", f"{source}.q_a_proj", hp.q_lora_rank, hp.n_embd))
        specs.append(_vector(f"{out}.attn_q_a_norm.weight", f"{source}.q_a_layernorm.weight", hp.q_lora_rank))
        specs.append(_matrix(f"{out}.attn_q_b", f"{source}.q_b_proj", queries, hp.q_lora_rank))
    rows = hp.n_head * (hp.qk_nope_dim + hp.v_head_dim)
    kv_b = (SourceSpec(f"{source}.kv_b_proj.weight", ((rows, rank),)),)
    key_shape = (hp.qk_nope_dim, rank, hp.n_head)
    value_shape = (rank, hp.v_head_dim, hp.n_head)
    latent_rows = rank + hp.qk_rope_dim
    specs += [
        _matrix(f"{out}.attn_kv_a_mqa", f"{source}.kv_a_proj_with_mqa", latent_rows, hp.n_embd),
        _vector(f"{out}.attn_kv_a_norm.weight", f"{source}.kv_a_layernorm.weight", rank),
        TensorSpec(f"{out}.attn_k_b.weight", key_shape, Role.MATRIX, Transform.KV_B_KEY, kv_b),
        TensorSpec(f"{out}.attn_v_b.weight", value_shape, Role.MATRIX, Transform.KV_B_VALUE, kv_b),
    ]
    if hp.is_k3:
        specs.append(_matrix(f"{out}.attn_gate", f"{source}.g_proj", values, hp.n_embd))
    specs.append(_matrix(f"{out}.attn_output", f"{source}.o_proj", hp.n_embd, values))
    return specs


def _dense_tensors(hp: HyperParameters, out: str, source: str) -> list[TensorSpec]:
    return [
        _matrix(f"{out}.ffn_gate", f"{source}.gate_proj", hp.n_ff, hp.n_embd),
        _matrix(f"{out}.ffn_up", f"{source}.up_proj", hp.n_ff, hp.n_embd),
        _matrix(f"{out}.ffn_down", f"{source}.down_proj", hp.n_embd, hp.n_ff),
    ]


def _moe_tensors(hp: HyperParameters, out: str, source: str) -> list[TensorSpec]:
    width, inner, shared = hp.expert_width, hp.n_ff_expert, hp.n_ff_shared
    gate = SourceSpec(f"{source}.gate.weight", ((hp.n_expert, hp.n_embd),))
    router_shape = (hp.n_embd, hp.n_expert)
    specs = [
        TensorSpec(f"{out}.ffn_gate_inp.weight", router_shape, Role.F32, Transform.COPY, (gate,)),
        _vector(f"{out}.exp_probs_b.bias", f"{source}.gate.e_score_correction_bias", hp.n_expert),
    ]
    if hp.n_latent is not None:
        latent = hp.n_latent
        specs += [
            _matrix(f"{out}.ffn_routed_down", f"{source}.routed_expert_down_proj", latent, hp.n_embd),
            _vector(f"{out}.ffn_routed_norm.weight", f"{source}.routed_expert_norm.weight", latent),
            _matrix(f"{out}.ffn_routed_up", f"{source}.routed_expert_up_proj", hp.n_embd, latent),
        ]
    experts = f"{source}.shared_experts"
    specs += [
        _matrix(f"{out}.ffn_gate_shexp", f"{experts}.gate_proj", shared, hp.n_embd),
        _matrix(f"{out}.ffn_up_shexp", f"{experts}.up_proj", shared, hp.n_embd),
        _matrix(f"{out}.ffn_down_shexp", f"{experts}.down_proj", hp.n_embd, shared),
        _experts(hp, f"{out}.ffn_gate_exps", f"{source}.experts.{{}}.w1", inner, width),
        _experts(hp, f"{out}.ffn_up_exps", f"{source}.experts.{{}}.w3", inner, width),
        _experts(hp, f"{out}.ffn_down_exps", f"{source}.experts.{{}}.w2", width, inner),
    ]
    return specs


def _matrix(name: str, source: str, rows: int, cols: int) -> TensorSpec:
    spec = SourceSpec(f"{source}.weight", ((rows, cols),))
    return TensorSpec(f"{name}.weight", (cols, rows), Role.MATRIX, Transform.COPY, (spec,))


def _vector(name: str, source: str, size: int) -> TensorSpec:
    return TensorSpec(name, (size,), Role.F32, Transform.COPY, (SourceSpec(source, ((size,),)),))


def _conv(hp: HyperParameters, name: str, source: str) -> TensorSpec:
    """Depthwise taps; the newest tap is the last and the fastest dimension on both sides."""
    width, taps = hp.kda_width, hp.conv_kernel
    spec = SourceSpec(source, ((width, 1, taps), (width, taps)))
    return TensorSpec(name, (taps, 1, width, 1), Role.F32, Transform.COPY, (spec,))


def _decay(hp: HyperParameters, name: str, source: str) -> TensorSpec:
    """One decay per head. K3 stores it padded with zeros to 128 and keeps one dimension in GGUF.

    Kimi-Linear stores [1, 1, head, 1], which GGUF keeps.
    """
    heads = hp.n_head
    padded = max(heads, 128)
    shapes: tuple[Shape, ...] = ((heads,), (1, 1, heads, 1))
    ne: Shape = (1, heads, 1, 1)
    if hp.is_k3:
        shapes, ne = ((heads,), (padded,)), (heads,)
    return TensorSpec(name, ne, Role.F32, Transform.NEG_EXP, (SourceSpec(source, shapes),))


def _res_score(name: str, source: str, size: int) -> TensorSpec:
    norm = SourceSpec(f"{source}_norm.weight", ((size,),))
    proj = SourceSpec(f"{source}_proj.weight", ((1, size), (size,)))
    return TensorSpec(name, (size,), Role.F32, Transform.RES_SCORE, (norm, proj))


def _experts(hp: HyperParameters, name: str, source: str, rows: int, cols: int) -> TensorSpec:
    spec = SourceSpec(source, ((rows, cols),))
    return TensorSpec(f"{name}.weight", (cols, rows, hp.n_expert), Role.EXPERTS, Transform.EXPERTS, (spec,))
