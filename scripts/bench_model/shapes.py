"""The sizes of the models: a middling Kimi-K3, and slices of the two real models.

A slice has the real widths, so that each of its layers costs what a real layer costs, and the first four
layers (three KDA, one MLA): what follows repeats them. Vocabulary, number of experts and, in K3, the dense
layer are smaller, which keeps the file in a small machine's memory.
"""

from __future__ import annotations

from dataclasses import replace

from convert.config import KDA, KIMI_K3, KIMI_LINEAR, MLA, HyperParameters

FULL_ATTENTION_EVERY = 4


def layer_kinds(n_layer: int) -> tuple[str, ...]:
    """Every fourth layer is MLA, as in both models."""
    return tuple(MLA if (i + 1) % FULL_ATTENTION_EVERY == 0 else KDA for i in range(n_layer))


K3_MID = HyperParameters(
    arch=KIMI_K3,
    n_layer=12,
    n_embd=1024,
    n_vocab=8192,
    n_ctx=1 << 20,
    n_head=8,
    n_ff=4096,
    n_layer_dense=1,
    rms_eps=1e-5,
    rope_theta=None,
    kda_head_dim=128,
    conv_kernel=4,
    gate_lower_bound=-5.0,
    q_lora_rank=512,
    kv_lora_rank=512,
    qk_nope_dim=128,
    qk_rope_dim=64,
    v_head_dim=128,
    n_expert=64,
    n_expert_used=8,
    n_expert_shared=1,
    n_expert_group_used=1,
    n_ff_expert=512,
    n_latent=512,
    routed_scale=1.0,
    situ_beta=4.0,
    situ_linear_beta=25.0,
    attn_res_block=4,
    layer_kinds=layer_kinds(12),
)

K3_SLICE = replace(
    K3_MID,
    n_layer=4,
    n_embd=7168,
    n_vocab=2048,  # of 163,840
    n_head=96,
    n_ff=6144,  # of 33,792
    q_lora_rank=1536,
    n_expert=32,  # of 896
    n_expert_used=16,
    n_expert_shared=2,
    n_ff_expert=3072,
    n_latent=3584,
    attn_res_block=12,
    layer_kinds=layer_kinds(4),
)

LINEAR_SLICE = HyperParameters(
    arch=KIMI_LINEAR,
    n_layer=4,
    n_embd=2304,
    n_vocab=2048,  # of 163,840
    n_ctx=1 << 20,
    n_head=32,
    n_ff=9216,
    n_layer_dense=1,
    rms_eps=1e-5,
    rope_theta=10000.0,
    kda_head_dim=128,
    conv_kernel=4,
    gate_lower_bound=None,
    q_lora_rank=None,
    kv_lora_rank=512,
    qk_nope_dim=128,
    qk_rope_dim=64,
    v_head_dim=128,
    n_expert=64,  # of 256
    n_expert_used=8,
    n_expert_shared=1,
    n_expert_group_used=1,
    n_ff_expert=1024,
    n_latent=None,
    routed_scale=2.446,
    situ_beta=None,
    situ_linear_beta=None,
    attn_res_block=None,
    layer_kinds=layer_kinds(4),
)

MODELS = {"k3-mid": K3_MID, "k3-slice": K3_SLICE, "kimi-linear-slice": LINEAR_SLICE}
