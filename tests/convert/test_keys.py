"""The written keys against the table of llama.cpp's names, types and values for the real models."""

from __future__ import annotations

from typing import Any

from gguf import GGUFValueType as V

from convert.config import read_config
from convert.keys import model_keys
from tests.convert.test_config import real_k3, real_linear

KV_HEADS = [1 if (layer + 1) % 4 == 0 or layer == 92 else 0 for layer in range(93)]

SHARED: dict[str, tuple[V, Any]] = {
    "general.type": (V.STRING, "model"),
    "general.quantization_version": (V.UINT32, 2),
    "general.file_type": (V.UINT32, 38),
    "general.name": (V.STRING, "name"),
    "{}.context_length": (V.UINT32, 1048576),
    "{}.vocab_size": (V.UINT32, 163840),
    "{}.attention.layer_norm_rms_epsilon": (V.FLOAT32, 1e-5),
    "{}.attention.kv_lora_rank": (V.UINT32, 512),
    "{}.attention.key_length": (V.UINT32, 576),
    "{}.attention.key_length_mla": (V.UINT32, 192),
    "{}.attention.value_length_mla": (V.UINT32, 128),
    "{}.rope.dimension_count": (V.UINT32, 64),
    "{}.ssm.conv_kernel": (V.UINT32, 4),
    "{}.kda.head_dim": (V.UINT32, 128),
    "{}.expert_group_used_count": (V.UINT32, 1),
    "{}.leading_dense_block_count": (V.UINT32, 1),
    "{}.expert_gating_func": (V.UINT32, 2),
}
OWN = {"llama_k3.layer_kinds", "llama_k3.lora_norm_epsilon", "llama_k3.l2_norm_epsilon"}

K3: dict[str, tuple[V, Any]] = {
    "general.architecture": (V.STRING, "kimi-k3"),
    "{}.block_count": (V.UINT32, 93),
    "{}.embedding_length": (V.UINT32, 7168),
    "{}.feed_forward_length": (V.UINT32, 33792),
    "{}.attention.head_count": (V.UINT32, 96),
    "{}.attention.head_count_kv": (V.ARRAY, KV_HEADS),
    "{}.expert_count": (V.UINT32, 896),
    "{}.expert_used_count": (V.UINT32, 16),
    "{}.kda.gate_lower_bound": (V.FLOAT32, -5.0),
    "{}.attention.q_lora_rank": (V.UINT32, 1536),
    "{}.attention.value_length": (V.UINT32, 512),
    "{}.expert_feed_forward_length": (V.UINT32, 3072),
    "{}.expert_shared_count": (V.UINT32, 2),
    "{}.expert_weights_scale": (V.FLOAT32, 1.0),
    "{}.expert_weights_norm": (V.BOOL, True),
    "{}.expert_latent_length": (V.UINT32, 3584),
    "{}.activation.situ_beta": (V.FLOAT32, 4.0),
    "{}.activation.situ_linear_beta": (V.FLOAT32, 25.0),
    "{}.attn_res.block_size": (V.UINT32, 12),
}

LINEAR: dict[str, tuple[V, Any]] = {
    "general.architecture": (V.STRING, "kimi-linear"),
    "{}.block_count": (V.UINT32, 27),
    "{}.embedding_length": (V.UINT32, 2304),
    "{}.feed_forward_length": (V.UINT32, 9216),
    "{}.attention.head_count": (V.UINT32, 32),
    "{}.attention.head_count_kv": (
        V.ARRAY,
        [1 if n in (4, 8, 12, 16, 20, 24, 27) else 0 for n in range(1, 28)],
    ),
    "{}.expert_count": (V.UINT32, 256),
    "{}.expert_used_count": (V.UINT32, 8),
    "{}.expert_feed_forward_length": (V.UINT32, 1024),
    "{}.expert_shared_count": (V.UINT32, 1),
    "{}.expert_weights_scale": (V.FLOAT32, 2.446),
    "{}.rope.freq_base": (V.FLOAT32, 10000.0),
}


def check(config: dict[str, Any], arch: str, table: dict[str, tuple[V, Any]]) -> None:
    keys = {key.name: key for key in model_keys(read_config(config), "name", 38)}
    wanted = {name.format(arch): value for name, value in {**SHARED, **table}.items()}
    assert keys.keys() - OWN == wanted.keys()
    for name, (kind, value) in wanted.items():
        assert (keys[name].type, keys[name].value) == (kind, value), name
    assert keys[f"{arch}.attention.head_count_kv"].element == V.INT32
    kinds = ["mla" if heads else "kda" for heads in keys[f"{arch}.attention.head_count_kv"].value]
    assert list(keys["llama_k3.layer_kinds"].value) == kinds
    assert keys["llama_k3.lora_norm_epsilon"].value == keys["llama_k3.l2_norm_epsilon"].value == 1e-6


def test_kimi_k3() -> None:
    check(real_k3(), "kimi-k3", K3)


def test_kimi_linear() -> None:
    check(real_linear(), "kimi-linear", LINEAR)
