"""The hyper-parameters that the forward pass needs, for both architectures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Config:
    """One text model. The two architectures differ only in these values.

    Kimi-Linear has gate_lower_bound, attn_res_block, latent_size, q_lora_rank and situ_* at None, no gates on
    MLA and a low-rank KDA output gate.
    """

    num_layers: int
    kda_layers: frozenset[int]  # 0-based
    mla_layers: frozenset[int]  # 0-based
    rms_norm_eps: float
    attn_res_block: int | None
    # KDA
    kda_heads: int
    kda_head_dim: int
    gate_lower_bound: float | None
    full_rank_gate: bool
    # MLA
    mla_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    mla_output_gate: bool
    # feed-forward
    situ_beta: float | None
    situ_linear_beta: float | None
    num_dense_layers: int
    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    latent_size: int | None
    latent_norm: bool
    renormalize: bool
    routed_scaling_factor: float

    def layer_kind(self, layer: int) -> str:
        """ "kda" or "mla" of a 0-based layer; ValueError if it is in neither list or in both."""
        kinds = [
            name for name, layers in (("kda", self.kda_layers), ("mla", self.mla_layers)) if layer in layers
        ]
        if len(kinds) != 1:
            raise ValueError(f"layer {layer} (0-based): found kinds {kinds}, wanted exactly one")
        return kinds[0]


def parse_config(text: dict[str, Any]) -> Config:
    """Config from the `text_config` of K3 or the whole config of Kimi-Linear.

    The layer lists of the files are 1-based. Raises ValueError for a setting that the model does not have.
    """
    linear = text["linear_attn_config"]
    activation = text["hidden_act"]
    wanted = {
        "hidden_act": (activation, ("situ", "silu")),
        "moe_router_activation_func": (text["moe_router_activation_func"], ("sigmoid",)),
        "num_expert_group": (text["num_expert_group"], (1,)),
        "moe_layer_freq": (text["moe_layer_freq"], (1,)),
        "mla_use_nope": (text["mla_use_nope"], (True,)),
    }
    for name, (found, allowed) in wanted.items():
        if found not in allowed:
            raise ValueError(f"{name}: found {found!r}, wanted one of {allowed}")
    return Config(
        num_layers=text["num_hidden_layers"],
        kda_layers=frozenset(layer - 1 for layer in linear["kda_layers"]),
        mla_layers=frozenset(layer - 1 for layer in linear["full_attn_layers"]),
        rms_norm_eps=text["rms_norm_eps"],
        attn_res_block=text.get("attn_res_block_size"),
        kda_heads=linear["num_heads"],
        kda_head_dim=linear["head_dim"],
        gate_lower_bound=linear.get("gate_lower_bound"),
        full_rank_gate=linear.get("use_full_rank_gate", False),
        mla_heads=text["num_attention_heads"],
        q_lora_rank=text.get("q_lora_rank"),
        kv_lora_rank=text["kv_lora_rank"],
        nope_dim=text["qk_nope_head_dim"],
        rope_dim=text["qk_rope_head_dim"],
        v_dim=text["v_head_dim"],
        mla_output_gate=text.get("mla_use_output_gate", False),
        situ_beta=text["activation_situ_beta"] if activation == "situ" else None,
        situ_linear_beta=text["activation_situ_linear_beta"] if activation == "situ" else None,
        num_dense_layers=text["first_k_dense_replace"],
        num_experts=text["num_experts"],
        experts_per_token=text["num_experts_per_token"],
        num_shared_experts=text["num_shared_experts"],
        latent_size=text.get("routed_expert_hidden_size"),
        latent_norm=text.get("latent_moe_use_norm", False),
        renormalize=text["moe_renormalize"],
        routed_scaling_factor=text["routed_scaling_factor"],
    )
