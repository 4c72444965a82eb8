"""The model's GGUF keys (all but the tokenizer's): names and types of llama.cpp, plus a few of our own.

Own keys start with `llama_k3.` and are optional for every reader.
"""

from __future__ import annotations

from .config import L2_NORM_EPS, LORA_NORM_EPS, MLA, HyperParameters
from .header import Key, f32, flag, i32s, text, texts, u32

GATING_SIGMOID = 2
QUANTIZATION_VERSION = 2


def model_keys(hp: HyperParameters, name: str, file_type: int) -> list[Key]:
    """`name` is free text; `file_type` is llama.cpp's number for the predominant type."""
    prefix = hp.arch
    keys = [
        text("general.architecture", hp.arch),
        text("general.type", "model"),
        text("general.name", name),
        u32("general.quantization_version", QUANTIZATION_VERSION),
        u32("general.file_type", file_type),
        u32(f"{prefix}.block_count", hp.n_layer),
        u32(f"{prefix}.context_length", hp.n_ctx),
        u32(f"{prefix}.embedding_length", hp.n_embd),
        u32(f"{prefix}.feed_forward_length", hp.n_ff),
        u32(f"{prefix}.vocab_size", hp.n_vocab),
        f32(f"{prefix}.attention.layer_norm_rms_epsilon", hp.rms_eps),
    ]
    return keys + _attention_keys(hp) + _moe_keys(hp) + _own_keys(hp)


def _attention_keys(hp: HyperParameters) -> list[Key]:
    """MLA is described as one key head of latent + rope width; 0 key heads mark a KDA layer."""
    prefix = hp.arch
    heads_kv = [1 if kind == MLA else 0 for kind in hp.layer_kinds]
    keys = [
        u32(f"{prefix}.attention.head_count", hp.n_head),
        i32s(f"{prefix}.attention.head_count_kv", heads_kv),
        u32(f"{prefix}.attention.kv_lora_rank", hp.kv_lora_rank),
        u32(f"{prefix}.attention.key_length", hp.kv_lora_rank + hp.qk_rope_dim),
        u32(f"{prefix}.attention.key_length_mla", hp.qk_head_dim),
        u32(f"{prefix}.attention.value_length_mla", hp.v_head_dim),
        u32(f"{prefix}.rope.dimension_count", hp.qk_rope_dim),
        u32(f"{prefix}.ssm.conv_kernel", hp.conv_kernel),
        u32(f"{prefix}.kda.head_dim", hp.kda_head_dim),
    ]
    if hp.is_k3:
        keys.append(u32(f"{prefix}.attention.value_length", hp.kv_lora_rank))
    if hp.q_lora_rank is not None:
        keys.append(u32(f"{prefix}.attention.q_lora_rank", hp.q_lora_rank))
    if hp.gate_lower_bound is not None:
        keys.append(f32(f"{prefix}.kda.gate_lower_bound", hp.gate_lower_bound))
    if hp.rope_theta is not None:
        keys.append(f32(f"{prefix}.rope.freq_base", hp.rope_theta))
    return keys


def _moe_keys(hp: HyperParameters) -> list[Key]:
    prefix = hp.arch
    keys = [
        u32(f"{prefix}.expert_count", hp.n_expert),
        u32(f"{prefix}.expert_used_count", hp.n_expert_used),
        u32(f"{prefix}.expert_group_used_count", hp.n_expert_group_used),
        u32(f"{prefix}.expert_shared_count", hp.n_expert_shared),
        u32(f"{prefix}.expert_feed_forward_length", hp.n_ff_expert),
        u32(f"{prefix}.leading_dense_block_count", hp.n_layer_dense),
        f32(f"{prefix}.expert_weights_scale", hp.routed_scale),
        u32(f"{prefix}.expert_gating_func", GATING_SIGMOID),
    ]
    if hp.is_k3:
        keys.append(flag(f"{prefix}.expert_weights_norm", True))
    if hp.n_latent is not None:
        keys.append(u32(f"{prefix}.expert_latent_length", hp.n_latent))
    if hp.situ_beta is not None and hp.situ_linear_beta is not None:
        keys.append(f32(f"{prefix}.activation.situ_beta", hp.situ_beta))
        keys.append(f32(f"{prefix}.activation.situ_linear_beta", hp.situ_linear_beta))
    if hp.attn_res_block is not None:
        keys.append(u32(f"{prefix}.attn_res.block_size", hp.attn_res_block))
    return keys


def _own_keys(hp: HyperParameters) -> list[Key]:
    return [
        texts("llama_k3.layer_kinds", hp.layer_kinds),
        f32("llama_k3.lora_norm_epsilon", LORA_NORM_EPS),
        f32("llama_k3.l2_norm_epsilon", L2_NORM_EPS),
    ]
