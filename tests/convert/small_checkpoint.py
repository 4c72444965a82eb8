"""Checkpoints of a few ten kilobytes for the converter's tests, held in memory and changed at will.

Names and shapes are written out here from the checkpoint format's description, not taken from the converter.
"""

from __future__ import annotations

import base64
import copy
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MERGED = (b"ab", b"cd", b"abcd", b" a")
N_RANKS = 256 + len(MERGED)
VOCAB = 268
HIDDEN = 16
LAYERS = 3
HEADS = 2
KDA_HEAD = 8
KDA_WIDTH = HEADS * KDA_HEAD
NOPE, ROPE, VALUE = 32, 4, 8
KV_RANK, Q_RANK = 32, 16
DENSE = 32
EXPERTS, INNER, LATENT = 2, 32, 32
BOS, EOS, EOM, PAD = N_RANKS, N_RANKS + 1, N_RANKS + 2, VOCAB - 1
SPECIALS = {BOS: "[BOS]", EOS: "[EOS]", EOM: "<|end_of_msg|>", PAD: "[PAD]"}

PACKING = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}

F32_PARTS = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")


@dataclass
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass
class SmallCheckpoint:
    """`tensors` by full name; `shard_of` gives a tensor's shard number; None writes one file without index.

    `edit_header` and `edit_index` may change what is written about the tensors, `edit_shard` the bytes.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    tokenizer: dict[str, Any]
    ranks: bytes
    shard_of: Callable[[str], int] | None = None
    extra_files: dict[str, bytes] = field(default_factory=dict)
    edit_header: Callable[[dict[str, Any]], None] | None = None
    edit_index: Callable[[dict[str, Any]], None] | None = None
    edit_shard: Callable[[bytes], bytes] | None = None

    @property
    def text(self) -> dict[str, Any]:
        """The language model's part of the config."""
        text: dict[str, Any] = self.config.get("text_config", self.config)
        return text

    def copy(self) -> SmallCheckpoint:
        return copy.deepcopy(self)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "tokenizer_config.json").write_text(json.dumps(self.tokenizer))
        (folder / "tiktoken.model").write_bytes(self.ranks)
        shards: dict[int, list[str]] = {}
        for name in self.tensors:
            shards.setdefault(self.shard_of(name) if self.shard_of else 0, []).append(name)
        if self.shard_of is None:
            (folder / "model.safetensors").write_bytes(self.shard_bytes(shards[0]))
        else:
            weight_map = {}
            for number, names in shards.items():
                file = f"model-{number + 1:05d}-of-{len(shards):06d}.safetensors"
                (folder / file).write_bytes(self.shard_bytes(names))
                weight_map.update(dict.fromkeys(names, file))
            index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
            if self.edit_index is not None:
                self.edit_index(index)
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for file, data in self.extra_files.items():
            (folder / file).write_bytes(data)
        return folder

    def shard_bytes(self, names: list[str]) -> bytes:
        """A safetensors file of the named tensors."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for name in names:
            tensor = self.tensors[name]
            end = position + len(tensor.data)
            header[name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [position, end],
            }
            position = end
        if self.edit_header is not None:
            self.edit_header(header)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        data = struct.pack("<Q", len(text)) + text + b"".join(self.tensors[name].data for name in names)
        return self.edit_shard(data) if self.edit_shard is not None else data


def small_k3(packed: bool = True) -> SmallCheckpoint:
    """Kimi-K3: layers KDA + dense, KDA + MoE, MLA + MoE."""
    text = {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "intermediate_size": DENSE, "hidden_act": "situ",
        "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 2,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": Q_RANK, "kv_lora_rank": KV_RANK,
        "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "mla_use_nope": True,
        "mla_use_output_gate": True, "num_experts": EXPERTS, "num_experts_per_token": 1,
        "num_shared_experts": 2, "moe_intermediate_size": INNER, "routed_expert_hidden_size": LATENT,
        "latent_moe_use_norm": True, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "topk_method": "noaux_tc", "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1,
        "routed_scaling_factor": 1.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 0, "tie_word_embeddings": False,
        "linear_attn_config": {
            "num_heads": HEADS, "head_dim": KDA_HEAD, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
            "use_full_rank_gate": True, "full_attn_layers": [3], "kda_layers": [1, 2],
        },
    }  # fmt: skip
    config = {
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "text_config": text,
        "tie_word_embeddings": False, "bos_token_id": BOS, "eos_token_id": EOM, "pad_token_id": PAD,
    }  # fmt: skip
    if packed:
        text["quantization_config"] = dict(PACKING)
    tensors = _Maker("language_model.", packed).model(k3=True)
    return SmallCheckpoint(config, tensors, _tokenizer(), _ranks())


def small_linear(packed: bool = False) -> SmallCheckpoint:
    """Kimi-Linear with the same layer pattern."""
    config = {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "vocab_size": VOCAB,
        "hidden_size": HIDDEN, "head_dim": 72, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "intermediate_size": DENSE, "hidden_act": "silu",
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": None, "kv_lora_rank": KV_RANK,
        "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "mla_use_nope": True,
        "num_experts": EXPERTS, "num_experts_per_token": 1, "num_shared_experts": 1,
        "moe_intermediate_size": INNER, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446, "rms_norm_eps": 1e-5,
        "model_max_length": 4096, "rope_theta": 10000.0, "rope_scaling": None, "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False, "bos_token_id": BOS, "eos_token_id": EOM, "pad_token_id": PAD,
        "linear_attn_config": {
            "num_heads": HEADS, "head_dim": KDA_HEAD, "short_conv_kernel_size": 4,
            "full_attn_layers": [3], "kda_layers": [1, 2],
        },
    }  # fmt: skip
    if packed:
        config["quantization_config"] = dict(PACKING)
    return SmallCheckpoint(config, _Maker("", packed).model(k3=False), _tokenizer(), _ranks())


def bf16_bytes(values: npt.NDArray[np.float32]) -> bytes:
    """float32 values cut to BF16."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


class _Maker:
    """Random tensors under their checkpoint names."""

    def __init__(self, prefix: str, packed: bool) -> None:
        self.prefix = prefix
        self.packed = packed
        self.rng = np.random.default_rng(20)
        self.tensors: dict[str, Tensor] = {}

    def add(self, name: str, *shape: int) -> None:
        values = self.rng.standard_normal(shape).astype(np.float32)
        is_f32 = name.endswith(F32_PARTS)
        data = values.tobytes() if is_f32 else bf16_bytes(values)
        self.tensors[self.prefix + name] = Tensor("F32" if is_f32 else "BF16", shape, data)

    def add_expert(self, name: str, rows: int, cols: int) -> None:
        if not self.packed:
            self.add(f"{name}.weight", rows, cols)
            return
        codes = self.rng.integers(0, 256, (rows, cols // 2), np.uint8)
        scales = self.rng.integers(120, 130, (rows, cols // 32), np.uint8)
        stem = f"{self.prefix}{name}.weight"
        self.tensors[f"{stem}_packed"] = Tensor("U8", codes.shape, codes.tobytes())
        self.tensors[f"{stem}_scale"] = Tensor("U8", scales.shape, scales.tobytes())

    def model(self, k3: bool) -> dict[str, Tensor]:
        self.add("model.embed_tokens.weight", VOCAB, HIDDEN)
        for layer in range(LAYERS):
            base = f"model.layers.{layer}."
            self.add(f"{base}input_layernorm.weight", HIDDEN)
            self.add(f"{base}post_attention_layernorm.weight", HIDDEN)
            if k3:
                self.residual(f"{base}self_attention_res")
                self.residual(f"{base}mlp_res")
            (self.mla if layer == 2 else self.kda)(f"{base}self_attn.", k3)
            if layer == 0:
                self.mlp(f"{base}mlp.", DENSE)
            else:
                self.moe(f"{base}block_sparse_moe.", k3)
        self.add("model.norm.weight", HIDDEN)
        self.add("lm_head.weight", VOCAB, HIDDEN)
        if k3:
            self.residual("model.output_attn_res")
            self.tensors["vision_tower.patch_embed.pos_emb"] = Tensor("BF16", (2,), bytes(4))
            self.tensors["mm_projector.proj.0.weight"] = Tensor("BF16", (1, 1), bytes(2))
        return self.tensors

    def residual(self, base: str) -> None:
        self.add(f"{base}_norm.weight", HIDDEN)
        self.add(f"{base}_proj.weight", 1, HIDDEN)

    def kda(self, base: str, k3: bool) -> None:
        for part in "qkv":
            self.add(f"{base}{part}_proj.weight", KDA_WIDTH, HIDDEN)
            self.add(f"{base}{part}_conv1d.weight", KDA_WIDTH, 1, 4)
        self.add(f"{base}f_a_proj.weight", KDA_HEAD, HIDDEN)
        self.add(f"{base}f_b_proj.weight", KDA_WIDTH, KDA_HEAD)
        self.add(f"{base}b_proj.weight", HEADS, HIDDEN)
        self.add(f"{base}dt_bias", KDA_WIDTH)
        self.add(f"{base}o_norm.weight", KDA_HEAD)
        self.add(f"{base}o_proj.weight", HIDDEN, KDA_WIDTH)
        if k3:
            self.add(f"{base}g_proj.weight", KDA_WIDTH, HIDDEN)
            decays = np.zeros(128, np.float32)
            decays[:HEADS] = self.rng.standard_normal(HEADS)
            self.tensors[f"{self.prefix}{base}A_log"] = Tensor("F32", (128,), decays.tobytes())
        else:
            self.add(f"{base}g_a_proj.weight", KDA_HEAD, HIDDEN)
            self.add(f"{base}g_b_proj.weight", KDA_WIDTH, KDA_HEAD)
            self.add(f"{base}A_log", 1, 1, HEADS, 1)

    def mla(self, base: str, k3: bool) -> None:
        queries = HEADS * (NOPE + ROPE)
        if k3:
            self.add(f"{base}q_a_proj.weight", Q_RANK, HIDDEN)
            self.add(f"{base}q_a_layernorm.weight", Q_RANK)
            self.add(f"{base}q_b_proj.weight", queries, Q_RANK)
            self.add(f"{base}g_proj.weight", HEADS * VALUE, HIDDEN)
        else:
            self.add(f"{base}q_proj.weight", queries, HIDDEN)
        self.add(f"{base}kv_a_proj_with_mqa.weight", KV_RANK + ROPE, HIDDEN)
        self.add(f"{base}kv_a_layernorm.weight", KV_RANK)
        self.add(f"{base}kv_b_proj.weight", HEADS * (NOPE + VALUE), KV_RANK)
        self.add(f"{base}o_proj.weight", HIDDEN, HEADS * VALUE)

    def mlp(self, base: str, width: int) -> None:
        self.add(f"{base}gate_proj.weight", width, HIDDEN)
        self.add(f"{base}up_proj.weight", width, HIDDEN)
        self.add(f"{base}down_proj.weight", HIDDEN, width)

    def moe(self, base: str, k3: bool) -> None:
        width = LATENT if k3 else HIDDEN
        self.add(f"{base}gate.weight", EXPERTS, HIDDEN)
        self.add(f"{base}gate.e_score_correction_bias", EXPERTS)
        if k3:
            self.add(f"{base}routed_expert_down_proj.weight", LATENT, HIDDEN)
            self.add(f"{base}routed_expert_norm.weight", LATENT)
            self.add(f"{base}routed_expert_up_proj.weight", HIDDEN, LATENT)
        self.mlp(f"{base}shared_experts.", INNER * (2 if k3 else 1))
        for expert in range(EXPERTS):
            self.add_expert(f"{base}experts.{expert}.w1", INNER, width)
            self.add_expert(f"{base}experts.{expert}.w2", width, INNER)
            self.add_expert(f"{base}experts.{expert}.w3", INNER, width)


def _tokenizer() -> dict[str, Any]:
    named = {str(key): {"content": name, "special": True} for key, name in SPECIALS.items()}
    return {"added_tokens_decoder": named, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]"}


def _ranks() -> bytes:
    tokens = [*(bytes([byte]) for byte in range(256)), *MERGED]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
