"""Write small seeded random checkpoints in the exact Hugging Face format of Kimi-K3 or Kimi-Linear.

    python scripts/make_tiny_checkpoint.py OUT --arch k3 --seed 1 [--experts mxfp4|bf16|f32]
        [--dtype bf16|f32] [--shards 2] [--norm-input-scale 0.02] [--set num_hidden_layers=5 ...]

A checkpoint has config.json, generation_config.json, tiktoken.model, tokenizer_config.json and safetensors
shards with their index. Names, dtypes and quirks are those of the released files (MODEL.md, "Checkpoint"):
A_log padded with zeros to 128 entries, `g_proj` in two roles, packed MXFP4 routed experts beside unpacked
latent projections, F32 where the release has F32, vision tensors that a text engine skips.

Every tensor has its own random stream, keyed by seed and name, so a value depends neither on the order of
writing nor on dtype or shards. K3's routed experts always lie on the MXFP4 grid, so the three forms of
`experts` hold the same numbers.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32Array = NDArray[np.float32]

NUM_SPECIAL_TOKENS = 256
# Length of A_log in the released K3 files; only the first num_heads entries are used.
K3_A_LOG_LENGTH = 128
MXFP4_GROUP = 32
E8M0_BIAS = 127
E2M1_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)

K3_TEXT_CONFIG: dict[str, Any] = {
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "vocab_size": 768,
    "hidden_size": 64,
    "num_hidden_layers": 9,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 160,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "attn_res_block_size": 4,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 96,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 2,
    "moe_intermediate_size": 96,
    "routed_expert_hidden_size": 32,
    "latent_moe_use_norm": True,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "topk_method": "noaux_tc",
    "use_grouped_topk": True,
    "num_expert_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "linear_attn_config": {
        "num_heads": 4,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
        "use_full_rank_gate": True,
    },
}

K3_VISION_CONFIG: dict[str, Any] = {
    "patch_size": 14,
    "vt_hidden_size": 32,
    "vt_num_hidden_layers": 1,
    "vt_num_attention_heads": 2,
    "qkv_hidden_size": 64,
    "vt_intermediate_size": 64,
    "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmergerv2",
    "mm_hidden_size": 32,
    "projector_ln_eps": 1e-5,
    "projector_hidden_act": "gelu",
    "activation_func": "gelu_pytorch_tanh",
    "norm_type": "rmsnorm",
    "mlp_type": "mlp2",
    "pos_emb_type": "divided_fixed",
    "init_pos_emb_height": 4,
    "init_pos_emb_width": 4,
    "init_pos_emb_time": 4,
}

K3_QUANTIZATION_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "group",
                "group_size": MXFP4_GROUP,
                "symmetric": True,
                "scale_dtype": "torch.uint8",
                "dynamic": False,
                "actorder": None,
                "observer": "minmax",
            },
            "input_activations": None,
            "output_activations": None,
        }
    },
    "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*lm_head.*",
        "re:.*vision_tower.*",
        "re:.*mm_projector.*",
    ],
}

KIMI_LINEAR_CONFIG: dict[str, Any] = {
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "vocab_size": 768,
    "hidden_size": 64,
    "head_dim": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 160,
    "hidden_act": "silu",
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 96,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "mla_use_nope": True,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "use_grouped_topk": True,
    "num_expert_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.446,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "model_max_length": 4096,
    "initializer_range": 0.02,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "linear_attn_config": {"num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4},
}

PRESETS = {"k3": K3_TEXT_CONFIG, "kimi-linear": KIMI_LINEAR_CONFIG}

# Special tokens by offset after the last base rank; offsets without a name are reserved.
K3_SPECIALS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
    6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>",
    19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>", 65: "<osagent_mode>",
    254: "[UNK]", 255: "[PAD]",
}  # fmt: skip
KIMI_LINEAR_SPECIALS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
    6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]", 10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>",
    18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>",
    254: "[UNK]", 255: "[PAD]",
}  # fmt: skip
SPECIALS = {"k3": K3_SPECIALS, "kimi-linear": KIMI_LINEAR_SPECIALS}

# Words whose prefixes become the merged tokens, in this order.
MERGE_WORDS = (
    "the and ing ion ent for her é ü 你好 世界 日本 привет 🙂 != == (); ... --- ### user assistant system"
    " message role think response tools call argument string number object weather answer question hello"
    " world kimi layer token model def return self import from class print"
)


# ---- random values -------------------------------------------------------------------------------------


class Randomness:
    """Random arrays that depend only on (seed, tensor name)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def matrix(self, name: str, shape: tuple[int, ...], gain: float) -> F32Array:
        """Gaussian entries with standard deviation gain / sqrt(columns): output RMS = gain * input RMS."""
        values = self.stream(name).standard_normal(shape, dtype=np.float32)
        return values * np.float32(gain / np.sqrt(shape[-1]))

    def norm_weight(self, name: str, size: int) -> F32Array:
        return (1.0 + 0.25 * self.stream(name).standard_normal(size)).astype(np.float32)

    def uniform(self, name: str, size: int, low: float, high: float) -> F32Array:
        return self.stream(name).uniform(low, high, size).astype(np.float32)

    def conv_taps(self, name: str, channels: int, width: int) -> F32Array:
        """[channels, 1, width]: magnitudes in [0.2, 0.8] with random signs, so that no tap is idle."""
        stream = self.stream(name)
        signs = stream.choice([-1.0, 1.0], (channels, 1, width))
        return (signs * stream.uniform(0.2, 0.8, (channels, 1, width))).astype(np.float32)


def mxfp4_quantize(values: F32Array) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[rows, cols] -> (packed [rows, cols/2], scale [rows, cols/32]).

    E2M1 codes, element 2j of a row in the low nibble of byte j; one E8M0 scale per 32 consecutive columns,
    the smallest power of two for which the group's largest magnitude stays within 6.
    """
    rows, cols = values.shape
    groups = values.reshape(rows, cols // MXFP4_GROUP, MXFP4_GROUP)
    peak = np.maximum(np.abs(groups).max(axis=-1), np.float32(2.0**-100))
    exponent = np.ceil(np.log2(peak / E2M1_MAGNITUDES[-1])).astype(np.int32)
    scaled = np.ldexp(groups, -exponent[..., None])
    midpoints = (E2M1_MAGNITUDES[1:] + E2M1_MAGNITUDES[:-1]) / 2
    codes = np.searchsorted(midpoints, np.abs(scaled)).astype(np.uint8)
    codes |= np.where(scaled < 0, 8, 0).astype(np.uint8)
    codes = codes.reshape(rows, cols)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed, (exponent + E8M0_BIAS).astype(np.uint8)


def mxfp4_dequantize(packed: NDArray[np.uint8], scale: NDArray[np.uint8]) -> F32Array:
    """Inverse of `mxfp4_quantize`: value = E2M1(code) * 2^(scale - 127), [rows, cols]."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    values = np.where(codes & 8, -1, 1).astype(np.float32) * E2M1_MAGNITUDES[codes & 7]
    exponents = np.repeat(scale.astype(np.int32) - E8M0_BIAS, MXFP4_GROUP, axis=1)
    return np.ldexp(values, exponents).astype(np.float32)


# ---- tensors -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file: its dtype there ("BF16", "F32", "U8") and how to make its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * {"BF16": 2, "F32": 4, "U8": 1}[self.dtype]

    def to_bytes(self) -> bytes:
        values = self.make().reshape(self.shape)
        return bf16_bits(values).tobytes() if self.dtype == "BF16" else values.tobytes()


def bf16_bits(values: F32Array) -> NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16 (ties to even) and return its bit patterns."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))
    return (rounded >> 16).astype(np.uint16)


class TensorPlan:
    """Names, shapes and value makers of every tensor of a checkpoint, in the order of the file."""

    def __init__(
        self, text: dict[str, Any], arch: str, seed: int, experts: str, dtype: str, norm_input_scale: float
    ) -> None:
        self.text = text
        self.linear = text["linear_attn_config"]
        self.is_k3 = arch == "k3"
        self.experts = experts
        self.matrix_dtype = {"bf16": "BF16", "f32": "F32"}[dtype]
        # K3 keeps the small KDA tensors in F32, Kimi-Linear keeps convolutions and norms in BF16.
        self.small_dtype = "F32" if self.is_k3 else self.matrix_dtype
        self.prefix = "language_model." if self.is_k3 else ""
        self.random = Randomness(seed)
        self.norm_input_scale = norm_input_scale

    def matrix(self, name: str, rows: int, cols: int, gain: float = 1.0) -> Tensor:
        full = f"{self.prefix}{name}.weight"
        shape = (rows, cols)
        return Tensor(full, self.matrix_dtype, shape, lambda: self.random.matrix(full, shape, gain))

    def norm(self, name: str, size: int, dtype: str | None = None) -> Tensor:
        full = f"{self.prefix}{name}.weight"
        return Tensor(full, dtype or self.matrix_dtype, (size,), lambda: self.random.norm_weight(full, size))

    def uniform_f32(self, name: str, size: int, low: float, high: float) -> Tensor:
        full = f"{self.prefix}{name}"
        return Tensor(full, "F32", (size,), lambda: self.random.uniform(full, size, low, high))

    def all_tensors(self) -> Iterator[Tensor]:
        text = self.text
        hidden, vocab = text["hidden_size"], text["vocab_size"]
        for layer in range(text["num_hidden_layers"]):
            yield from self.layer_tensors(layer)
        yield self.matrix("model.embed_tokens", vocab, hidden, gain=np.sqrt(hidden))
        yield self.matrix("lm_head", vocab, hidden, gain=1.5)
        yield self.norm("model.norm", hidden)
        if text.get("attn_res_block_size"):
            yield self.norm("model.output_attn_res_norm", hidden)
            yield self.matrix("model.output_attn_res_proj", 1, hidden, gain=0.75)
        if self.is_k3:
            yield from self.vision_tensors()

    def layer_tensors(self, layer: int) -> Iterator[Tensor]:
        base = f"model.layers.{layer}"
        hidden = self.text["hidden_size"]
        yield self.norm(f"{base}.input_layernorm", hidden)
        yield self.norm(f"{base}.post_attention_layernorm", hidden)
        if self.text.get("attn_res_block_size"):
            for residual in ("self_attention_res", "mlp_res"):
                yield self.norm(f"{base}.{residual}_norm", hidden)
                yield self.matrix(f"{base}.{residual}_proj", 1, hidden, gain=0.75)
        if layer + 1 in self.linear["kda_layers"]:
            yield from self.kda_tensors(f"{base}.self_attn")
        elif layer + 1 in self.linear["full_attn_layers"]:
            yield from self.mla_tensors(f"{base}.self_attn")
        if layer < self.text["first_k_dense_replace"]:
            yield from self.mlp_tensors(f"{base}.mlp", self.text["intermediate_size"])
        else:
            yield from self.moe_tensors(f"{base}.block_sparse_moe")

    def kda_tensors(self, base: str) -> Iterator[Tensor]:
        hidden = self.text["hidden_size"]
        heads, head_dim = self.linear["num_heads"], self.linear["head_dim"]
        width = heads * head_dim
        for part, gain in (("q", self.norm_input_scale), ("k", self.norm_input_scale), ("v", 1.0)):
            yield self.matrix(f"{base}.{part}_proj", width, hidden, gain)
        for part in "qkv":
            yield self.conv(f"{base}.{part}_conv1d", width)
        yield self.matrix(f"{base}.f_a_proj", head_dim, hidden)
        yield self.matrix(f"{base}.f_b_proj", width, head_dim)
        yield self.matrix(f"{base}.b_proj", heads, hidden, gain=1.5)
        yield self.a_log(f"{base}.A_log", heads)
        # Puts the decay of one token between about 0.02 (forget) and 0.99 (keep).
        yield self.uniform_f32(f"{base}.dt_bias", width, -4.0, 0.5)
        if self.linear.get("use_full_rank_gate"):
            yield self.matrix(f"{base}.g_proj", width, hidden, gain=1.5)
        else:
            yield self.matrix(f"{base}.g_a_proj", head_dim, hidden)
            yield self.matrix(f"{base}.g_b_proj", width, head_dim, gain=1.5)
        yield self.norm(f"{base}.o_norm", head_dim, self.small_dtype)
        yield self.matrix(f"{base}.o_proj", hidden, width, gain=1.5)

    def conv(self, name: str, channels: int) -> Tensor:
        full = f"{self.prefix}{name}.weight"
        width = self.linear["short_conv_kernel_size"]
        return Tensor(
            full,
            self.small_dtype,
            (channels, 1, width),
            lambda: self.random.conv_taps(full, channels, width),
        )

    def a_log(self, name: str, heads: int) -> Tensor:
        """K3: [128], zeros after the last head. Kimi-Linear: [1, 1, heads, 1]."""
        full = f"{self.prefix}{name}"
        padded = max(K3_A_LOG_LENGTH, heads) if self.is_k3 else heads
        shape = (padded,) if self.is_k3 else (1, 1, heads, 1)

        def make() -> F32Array:
            values = np.zeros(padded, dtype=np.float32)
            values[:heads] = self.random.uniform(full, heads, np.log(0.6), np.log(2.7))
            return values

        return Tensor(full, "F32", shape, make)

    def mla_tensors(self, base: str) -> Iterator[Tensor]:
        text = self.text
        hidden, heads, kv_rank = text["hidden_size"], text["num_attention_heads"], text["kv_lora_rank"]
        query_width = heads * (text["qk_nope_head_dim"] + text["qk_rope_head_dim"])
        value_width = heads * text["v_head_dim"]
        if text.get("q_lora_rank"):
            yield self.matrix(f"{base}.q_a_proj", text["q_lora_rank"], hidden, self.norm_input_scale)
            yield self.norm(f"{base}.q_a_layernorm", text["q_lora_rank"])
            yield self.matrix(f"{base}.q_b_proj", query_width, text["q_lora_rank"], gain=1.5)
        else:
            yield self.matrix(f"{base}.q_proj", query_width, hidden, gain=1.5)
        yield self.kv_a(f"{base}.kv_a_proj_with_mqa", kv_rank, text["qk_rope_head_dim"], hidden)
        yield self.norm(f"{base}.kv_a_layernorm", kv_rank)
        yield self.matrix(
            f"{base}.kv_b_proj", heads * (text["qk_nope_head_dim"] + text["v_head_dim"]), kv_rank
        )
        if text.get("mla_use_output_gate"):
            yield self.matrix(f"{base}.g_proj", value_width, hidden, gain=1.5)
        yield self.matrix(f"{base}.o_proj", hidden, value_width, gain=3.0)

    def kv_a(self, name: str, rank: int, rope: int, hidden: int) -> Tensor:
        """[rank + rope, hidden]: only the latent rows feed a norm, so only they take norm_input_scale."""
        full = f"{self.prefix}{name}.weight"
        shape = (rank + rope, hidden)

        def make() -> F32Array:
            values = self.random.matrix(full, shape, 1.0)
            values[:rank] *= np.float32(self.norm_input_scale)
            return values

        return Tensor(full, self.matrix_dtype, shape, make)

    def mlp_tensors(self, base: str, width: int) -> Iterator[Tensor]:
        hidden = self.text["hidden_size"]
        yield self.matrix(f"{base}.gate_proj", width, hidden, gain=2.0)
        yield self.matrix(f"{base}.up_proj", width, hidden, gain=2.0)
        yield self.matrix(f"{base}.down_proj", hidden, width, gain=0.7)

    def moe_tensors(self, base: str) -> Iterator[Tensor]:
        text = self.text
        hidden, experts = text["hidden_size"], text["num_experts"]
        latent, width = text.get("routed_expert_hidden_size"), text["moe_intermediate_size"]
        yield self.matrix(f"{base}.gate", experts, hidden, gain=2.0)
        # Wide enough to change the selection of most tokens, so that a biased weight would show.
        yield self.uniform_f32(f"{base}.gate.e_score_correction_bias", experts, -0.3, 0.3)
        if latent:
            yield self.matrix(f"{base}.routed_expert_down_proj", latent, hidden)
            if text.get("latent_moe_use_norm"):
                yield self.norm(f"{base}.routed_expert_norm", latent)
            yield self.matrix(f"{base}.routed_expert_up_proj", hidden, latent, gain=1.5)
        if text["num_shared_experts"]:
            yield from self.mlp_tensors(f"{base}.shared_experts", width * text["num_shared_experts"])
        for expert in range(experts):
            for part, rows, cols in (
                ("w1", width, latent or hidden),
                ("w2", latent or hidden, width),
                ("w3", width, latent or hidden),
            ):
                yield from self.expert_matrix(f"{base}.experts.{expert}.{part}", rows, cols)

    def expert_matrix(self, name: str, rows: int, cols: int) -> Iterator[Tensor]:
        full = f"{self.prefix}{name}"
        # Without the latent norm nothing tames the sum of the experts, so they start smaller.
        gain = 2.0 if self.text.get("routed_expert_hidden_size") else 1.0

        def values() -> F32Array:
            matrix = self.random.matrix(full, (rows, cols), gain)
            # Group magnitudes over two octaves, so that the scale bytes differ within a row.
            groups = (rows, cols // MXFP4_GROUP, 1)
            spread = np.exp2(self.random.stream(f"{full}.spread").uniform(-1, 1, groups)).astype(np.float32)
            return (matrix.reshape(rows, -1, MXFP4_GROUP) * spread).reshape(rows, cols)

        if self.experts == "mxfp4":
            packed_shape, scale_shape = (rows, cols // 2), (rows, cols // MXFP4_GROUP)
            yield Tensor(f"{full}.weight_packed", "U8", packed_shape, lambda: mxfp4_quantize(values())[0])
            yield Tensor(f"{full}.weight_scale", "U8", scale_shape, lambda: mxfp4_quantize(values())[1])
            return
        make = (lambda: mxfp4_dequantize(*mxfp4_quantize(values()))) if self.is_k3 else values
        yield Tensor(f"{full}.weight", {"bf16": "BF16", "f32": "F32"}[self.experts], (rows, cols), make)

    def vision_tensors(self) -> Iterator[Tensor]:
        """A one-layer vision tower and projector outside the language model's prefix."""
        vision = K3_VISION_CONFIG
        width, qkv, mlp = vision["vt_hidden_size"], vision["qkv_hidden_size"], vision["vt_intermediate_size"]
        patch, merged = vision["patch_size"], width * 4
        block = "vision_tower.encoder.blocks.0"
        shapes: dict[str, tuple[int, ...]] = {
            "vision_tower.patch_embed.proj.weight": (width, 3, patch, patch),
            "vision_tower.patch_embed.pos_emb": (4, 4, width),
            f"{block}.norm0.weight": (width,),
            f"{block}.norm1.weight": (width,),
            f"{block}.wqkv.weight": (3 * qkv, width),
            f"{block}.wo.weight": (width, qkv),
            f"{block}.mlp.fc0.weight": (mlp, width),
            f"{block}.mlp.fc1.weight": (width, mlp),
            "vision_tower.encoder.final_layernorm.weight": (width,),
            "mm_projector.proj.0.weight": (merged, merged),
            "mm_projector.proj.2.weight": (self.text["hidden_size"], merged),
            "mm_projector.post_norm.weight": (self.text["hidden_size"],),
        }
        for name, shape in shapes.items():
            yield self.vision_tensor(name, shape)

    def vision_tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(name, self.matrix_dtype, shape, lambda: self.random.matrix(name, shape, 1.0))


# ---- configuration -------------------------------------------------------------------------------------


def default_layer_lists(num_layers: int) -> tuple[list[int], list[int]]:
    """1-based (kda, full attention) lists: every fourth layer and the last one are full attention."""
    full = sorted({*range(4, num_layers + 1, 4), num_layers})
    return [layer for layer in range(1, num_layers + 1) if layer not in full], full


def apply_overrides(text: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Set fields of the text config or of its linear_attn_config by name.

    Raises ValueError for a name that neither of them has.
    """
    linear = text["linear_attn_config"]
    linear_fields = {*linear, "kda_layers", "full_attn_layers", "gate_lower_bound", "use_full_rank_gate"}
    for name, value in overrides.items():
        if name in linear_fields:
            linear[name] = value
        elif name in text or name in K3_TEXT_CONFIG:
            text[name] = value
        else:
            raise ValueError(f"unknown config field {name!r}; wanted a field of text_config")
    kda, full = default_layer_lists(text["num_hidden_layers"])
    linear.setdefault("kda_layers", kda)
    linear.setdefault("full_attn_layers", full)


def check_sizes(text: dict[str, Any], experts: str) -> None:
    """Raise ValueError for sizes that no checkpoint of this family can have."""
    if text["vocab_size"] < 256 + NUM_SPECIAL_TOKENS:
        raise ValueError(
            f"vocab_size: found {text['vocab_size']}, wanted at least {256 + NUM_SPECIAL_TOKENS} "
            f"(256 bytes and {NUM_SPECIAL_TOKENS} special tokens)"
        )
    if experts == "mxfp4":
        for name in ("moe_intermediate_size", "routed_expert_hidden_size", "hidden_size"):
            if (text.get(name) or 0) % MXFP4_GROUP:
                raise ValueError(f"{name}: found {text[name]}, wanted a multiple of {MXFP4_GROUP} for MXFP4")


def build_config(arch: str, experts: str, dtype: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """config.json as a dict; `text_config` nested for K3, flat for Kimi-Linear."""
    text = copy.deepcopy(PRESETS[arch])
    apply_overrides(text, overrides)
    check_sizes(text, experts)
    first_special = text["vocab_size"] - NUM_SPECIAL_TOKENS
    common = {
        "dtype": {"bf16": "bfloat16", "f32": "float32"}[dtype],
        "bos_token_id": first_special,
        "eos_token_id": first_special + 2,
        "pad_token_id": text["vocab_size"] - 1,
    }
    text.update(common)
    if experts == "mxfp4":
        text["quantization_config"] = copy.deepcopy(K3_QUANTIZATION_CONFIG)
    if arch == "kimi-linear":
        return text
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "auto_map": {
            "AutoConfig": "configuration_kimi_k3.KimiK3Config",
            "AutoModelForCausalLM": "modeling_kimi_k3.KimiK3ForConditionalGeneration",
        },
        **common,
        "ignore_index": -100,
        "image_placeholder": "<|kimi_image_placeholder|>",
        "media_placeholder_token_id": first_special + 21,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        "vision_config": {**K3_VISION_CONFIG, "text_hidden_size": text["hidden_size"]},
    }


# ---- tokenizer -----------------------------------------------------------------------------------------


def mergeable_ranks(count: int) -> list[bytes]:
    """`count` byte-level BPE tokens by rank: all bytes, then prefixes that grow by one byte at a time."""
    ranks = {bytes([value]): None for value in range(256)}
    pieces = [piece.encode() for word in MERGE_WORDS.split() for piece in (f" {word}", word)]
    pieces += [bytes([first, second]) for first in range(97, 123) for second in range(97, 123)]
    for piece in pieces:
        for end in range(2, len(piece) + 1):
            if len(ranks) == count:
                return list(ranks)
            ranks.setdefault(piece[:end])
    if len(ranks) < count:
        raise ValueError(f"base vocabulary: found {len(ranks)} tokens to offer, wanted {count}")
    return list(ranks)


def write_tokenizer(out_dir: Path, arch: str, config: dict[str, Any]) -> None:
    """tiktoken.model, tokenizer_config.json and generation_config.json."""
    text = config.get("text_config", config)
    first_special = text["vocab_size"] - NUM_SPECIAL_TOKENS
    lines = [
        f"{base64.b64encode(token).decode()} {rank}\n"
        for rank, token in enumerate(mergeable_ranks(first_special))
    ]
    (out_dir / "tiktoken.model").write_text("".join(lines))
    names = SPECIALS[arch]
    added = {
        str(first_special + offset): {
            "content": names.get(offset, f"<|reserved_token_{first_special + offset}|>"),
            "special": True,
        }
        for offset in range(NUM_SPECIAL_TOKENS)
    }
    write_json(
        out_dir / "tokenizer_config.json",
        {
            "tokenizer_class": "TikTokenTokenizer",
            "bos_token": "[BOS]",
            "eos_token": "[EOS]",
            "unk_token": "[UNK]",
            "pad_token": "[PAD]",
            "added_tokens_decoder": added,
        },
    )
    write_json(
        out_dir / "generation_config.json",
        {
            "max_length": text.get("max_position_embeddings") or text.get("model_max_length"),
            "eos_token_id": text["eos_token_id"],
        },
    )


# ---- files ---------------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_safetensors(path: Path, tensors: list[Tensor]) -> None:
    """One safetensors file: u64 header length, JSON header padded to 8 bytes, then the data in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            file.write(tensor.to_bytes())


def split_by_bytes(tensors: list[Tensor], shards: int) -> list[list[Tensor]]:
    """Consecutive runs of about equal size; raises ValueError if there are fewer tensors than shards."""
    if not 1 <= shards <= len(tensors):
        raise ValueError(f"shards: found {shards}, wanted 1 to {len(tensors)}")
    total = sum(tensor.nbytes for tensor in tensors)
    parts: list[list[Tensor]] = [[] for _ in range(shards)]
    written, part = 0, 0
    for index, tensor in enumerate(tensors):
        must_advance = len(tensors) - index == shards - 1 - part
        full = written * shards >= total * (part + 1)
        if parts[part] and part + 1 < shards and (full or must_advance):
            part += 1
        parts[part].append(tensor)
        written += tensor.nbytes
    return parts


def write_weights(out_dir: Path, tensors: list[Tensor], shards: int) -> None:
    """model.safetensors, or numbered shards with model.safetensors.index.json."""
    if shards == 1:
        write_safetensors(out_dir / "model.safetensors", tensors)
        return
    weight_map = {}
    for number, part in enumerate(split_by_bytes(tensors, shards), start=1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        write_safetensors(out_dir / name, part)
        weight_map.update({tensor.name: name for tensor in part})
    total = sum(tensor.nbytes for tensor in tensors)
    write_json(
        out_dir / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def write_checkpoint(
    out_dir: str | Path,
    arch: str,
    seed: int,
    experts: str | None = None,
    dtype: str = "bf16",
    shards: int = 2,
    norm_input_scale: float = 1.0,
    **overrides: Any,
) -> dict[str, Any]:
    """Write a random checkpoint into `out_dir` (made if missing) and return its config.

    arch: "k3" or "kimi-linear", the preset to start from.
    experts: "mxfp4", "bf16" or "f32" routed experts; the release's form if None (mxfp4 for K3, bf16).
    dtype: "bf16" or "f32" for all other matrices and norms.
    norm_input_scale: scale of the rows that feed the q_a/kv_a norms and the q/k L2 norms. Around 0.02 their
        eps (1e-6, not rms_norm_eps) changes the logits visibly; at 1 it does not.
    overrides: fields of text_config or linear_attn_config; the layer lists follow num_hidden_layers.
    Raises ValueError for an unknown choice, an unknown field or an impossible size.
    """
    if arch not in PRESETS:
        raise ValueError(f"arch: found {arch!r}, wanted one of {sorted(PRESETS)}")
    experts = experts or {"k3": "mxfp4", "kimi-linear": "bf16"}[arch]
    if experts not in ("mxfp4", "bf16", "f32"):
        raise ValueError(f"experts: found {experts!r}, wanted 'mxfp4', 'bf16' or 'f32'")
    if dtype not in ("bf16", "f32"):
        raise ValueError(f"dtype: found {dtype!r}, wanted 'bf16' or 'f32'")
    config = build_config(arch, experts, dtype, overrides)
    plan = TensorPlan(config.get("text_config", config), arch, seed, experts, dtype, norm_input_scale)
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    write_json(out_dir / "config.json", config)
    write_tokenizer(out_dir, arch, config)
    write_weights(out_dir, list(plan.all_tensors()), shards)
    return config


# ---- command line --------------------------------------------------------------------------------------


def parse_override(text: str) -> tuple[str, Any]:
    """Split NAME=JSON into the name and the decoded value."""
    match = re.fullmatch(r"(\w+)=(.+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted NAME=VALUE")
    try:
        return match[1], json.loads(match[2])
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{match[1]}: found {match[2]!r}, wanted a JSON value") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--arch", choices=sorted(PRESETS), default="k3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--experts", choices=("mxfp4", "bf16", "f32"))
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--norm-input-scale", type=float, default=1.0)
    parser.add_argument("--set", type=parse_override, action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    try:
        write_checkpoint(
            args.out_dir, args.arch, args.seed, args.experts, args.dtype, args.shards,
            args.norm_input_scale, **dict(args.set),
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    total = sum(path.stat().st_size for path in args.out_dir.iterdir())
    print(f"{args.out_dir}: {args.arch}, seed {args.seed}, {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
