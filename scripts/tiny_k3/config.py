"""Sizes of the tiny Kimi-K3 and their form in the Hugging Face `config.json` (nested text_config)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from scripts.make_tiny_checkpoint import K3_QUANTIZATION_CONFIG, MXFP4_GROUP

BASE_RANKS = 768
"""Ordinary tokens: 256 bytes and 512 merges. The special tokens follow, at K3's offsets."""
VOCAB_SIZE = BASE_RANKS + 256

_SPECIAL_OFFSETS = {
    "[BOS]": 0, "[EOS]": 1, "<|end_of_msg|>": 2, "<|open|>": 3, "<|close|>": 4, "<|sep|>": 5,
    "[start_header_id]": 6, "[end_header_id]": 7, "[EOT]": 9, "<|media_begin|>": 18, "<|media_content|>": 19,
    "<|media_end|>": 20, "<|media_pad|>": 21, "<osagent_mode>": 65, "[UNK]": 254, "[PAD]": 255,
}  # fmt: skip
SPECIAL_TOKENS = {name: BASE_RANKS + offset for name, offset in _SPECIAL_OFFSETS.items()}
END_OF_MESSAGE = SPECIAL_TOKENS["<|end_of_msg|>"]
PAD = SPECIAL_TOKENS["[PAD]"]

SITU_BETA = 4.0
SITU_LINEAR_BETA = 25.0
GATE_LOWER_BOUND = -5.0
CONV_WIDTH = 4
NORM_EPS = 1e-5
LORA_NORM_EPS = 1e-6
"""Epsilon of the two norms inside MLA; K3 builds them with another default than its other norms."""
A_LOG_LENGTH = 128
"""K3 stores A_log with 128 entries for fewer heads; the rest are zero."""


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of one model. `full_attention_layers` is 1-based as in K3's config; all other layers are KDA."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 128
    num_layers: int = 8
    full_attention_layers: tuple[int, ...] = (4, 7, 8)
    attn_res_block_size: int = 3
    num_heads: int = 4
    head_dim: int = 32
    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 32
    dense_width: int = 64
    num_experts: int = 24
    experts_per_token: int = 4
    expert_width: int = 32
    latent_size: int = 64
    shared_experts: int = 1
    max_positions: int = 4096

    def __post_init__(self) -> None:
        for name in ("hidden_size", "expert_width", "latent_size"):
            value = getattr(self, name)
            if value <= 0 or value % MXFP4_GROUP:
                raise ValueError(f"{name}: found {value}, want a positive multiple of {MXFP4_GROUP}")
        layers = set(self.full_attention_layers)
        if not layers <= set(range(1, self.num_layers + 1)):
            raise ValueError(f"full_attention_layers: found {sorted(layers)}, want 1..{self.num_layers}")
        if not 0 < self.experts_per_token <= self.num_experts:
            raise ValueError(f"experts_per_token: found {self.experts_per_token}, want 1..{self.num_experts}")
        if not 0 < self.num_heads <= A_LOG_LENGTH:
            raise ValueError(f"num_heads: found {self.num_heads}, want 1..{A_LOG_LENGTH}")

    def is_full_attention(self, layer: int) -> bool:
        """Whether the 0-based layer is MLA (otherwise it is KDA)."""
        return layer + 1 in self.full_attention_layers

    def to_hf(self) -> dict[str, Any]:
        """The contents of config.json."""
        ids = {
            "bos_token_id": SPECIAL_TOKENS["[BOS]"],
            "eos_token_id": END_OF_MESSAGE,
            "pad_token_id": PAD,
        }
        return {
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            "dtype": "bfloat16",
            **ids,
            "ignore_index": -100,
            "tie_word_embeddings": False,
            "text_config": {**self._text_config(), **ids},
        }

    def _text_config(self) -> dict[str, Any]:
        all_layers = range(1, self.num_layers + 1)
        return {
            "model_type": "kimi_linear",
            "architectures": ["KimiLinearForCausalLM"],
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_heads,
            "intermediate_size": self.dense_width,
            "hidden_act": "situ",
            "activation_situ_beta": SITU_BETA,
            "activation_situ_linear_beta": SITU_LINEAR_BETA,
            "attn_res_block_size": self.attn_res_block_size,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": self.kv_lora_rank,
            "qk_nope_head_dim": self.qk_nope_head_dim,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            "v_head_dim": self.v_head_dim,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "num_experts": self.num_experts,
            "num_experts_per_token": self.experts_per_token,
            "num_shared_experts": self.shared_experts,
            "moe_intermediate_size": self.expert_width,
            "routed_expert_hidden_size": self.latent_size,
            "latent_moe_use_norm": True,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "topk_method": "noaux_tc",
            "use_grouped_topk": True,
            "num_expert_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.0,
            "rms_norm_eps": NORM_EPS,
            "max_position_embeddings": self.max_positions,
            "initializer_range": 0.02,
            "num_nextn_predict_layers": 0,
            "tie_word_embeddings": False,
            "use_cache": True,
            "dtype": "bfloat16",
            "linear_attn_config": {
                "num_heads": self.num_heads,
                "head_dim": self.head_dim,
                "short_conv_kernel_size": CONV_WIDTH,
                "gate_lower_bound": GATE_LOWER_BOUND,
                "use_full_rank_gate": True,
                "full_attn_layers": list(self.full_attention_layers),
                "kda_layers": [i for i in all_layers if i not in self.full_attention_layers],
            },
            "quantization_config": copy.deepcopy(K3_QUANTIZATION_CONFIG),
        }

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> TinyConfig:
        """The sizes out of a config.json. Raises KeyError naming a missing field."""
        text = config["text_config"]
        linear = text["linear_attn_config"]
        return cls(
            vocab_size=text["vocab_size"],
            hidden_size=text["hidden_size"],
            num_layers=text["num_hidden_layers"],
            full_attention_layers=tuple(linear["full_attn_layers"]),
            attn_res_block_size=text["attn_res_block_size"],
            num_heads=text["num_attention_heads"],
            head_dim=linear["head_dim"],
            q_lora_rank=text["q_lora_rank"],
            kv_lora_rank=text["kv_lora_rank"],
            qk_nope_head_dim=text["qk_nope_head_dim"],
            qk_rope_head_dim=text["qk_rope_head_dim"],
            v_head_dim=text["v_head_dim"],
            dense_width=text["intermediate_size"],
            num_experts=text["num_experts"],
            experts_per_token=text["num_experts_per_token"],
            expert_width=text["moe_intermediate_size"],
            latent_size=text["routed_expert_hidden_size"],
            shared_experts=text["num_shared_experts"],
            max_positions=text["max_position_embeddings"],
        )
