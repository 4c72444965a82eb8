"""Reading config.json: the real models' values, the layer lists, the choice of architecture."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from convert.config import KDA, MLA, SHORT_CONV, read_config
from convert.errors import ConfigError, MissingFieldError, UnsupportedError
from tests.convert.small_checkpoint import small_k3, small_linear


def real_k3() -> dict[str, Any]:
    """The published config.json of Kimi-K3, as far as it says something about the text model."""
    full = [*range(4, 93, 4), 93]
    config = copy.deepcopy(small_k3().config)
    config["text_config"] |= {
        "vocab_size": 163840, "hidden_size": 7168, "num_hidden_layers": 93, "num_attention_heads": 96,
        "num_key_value_heads": 96, "intermediate_size": 33792, "attn_res_block_size": 12, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "num_experts": 896, "num_experts_per_token": 16, "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584, "max_position_embeddings": 1048576,
    }  # fmt: skip
    config["text_config"]["linear_attn_config"] |= {
        "num_heads": 96, "head_dim": 128, "full_attn_layers": full,
        "kda_layers": [layer for layer in range(1, 94) if layer not in full],
    }  # fmt: skip
    return config


def real_linear() -> dict[str, Any]:
    """The published config.json of Kimi-Linear-48B-A3B."""
    full = [4, 8, 12, 16, 20, 24, 27]
    config = copy.deepcopy(small_linear().config)
    config |= {
        "vocab_size": 163840, "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 9216, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256, "num_experts_per_token": 8,
        "moe_intermediate_size": 1024, "model_max_length": 1048576,
    }  # fmt: skip
    config["linear_attn_config"] |= {
        "num_heads": 32, "head_dim": 128, "full_attn_layers": full,
        "kda_layers": [layer for layer in range(1, 28) if layer not in full],
    }  # fmt: skip
    return config


def test_real_k3() -> None:
    hp = read_config(real_k3())
    assert (hp.arch, hp.n_layer, hp.n_embd, hp.n_head, hp.n_ff) == ("kimi-k3", 93, 7168, 96, 33792)
    assert (hp.kda_width, hp.qk_head_dim, hp.n_ff_shared, hp.expert_width) == (12288, 192, 6144, 3584)
    assert hp.layer_kinds.count(KDA) == 69 and hp.layer_kinds.count(MLA) == 24
    # The lists count from 1: the first layer is KDA and the last two are MLA.
    assert hp.layer_kinds[0] == KDA and hp.layer_kinds[91:] == (MLA, MLA)


def test_real_linear() -> None:
    hp = read_config(real_linear())
    assert (hp.arch, hp.n_layer, hp.n_ctx, hp.expert_width) == ("kimi-linear", 27, 1048576, 2304)
    assert [layer for layer, kind in enumerate(hp.layer_kinds) if kind == MLA] == [3, 7, 11, 15, 19, 23, 26]
    assert (hp.gate_lower_bound, hp.q_lora_rank, hp.n_latent, hp.situ_beta) == (None, None, None, None)


def test_layer_in_neither_list_is_tagged() -> None:
    config = real_k3()
    config["text_config"]["linear_attn_config"]["kda_layers"].remove(7)
    assert read_config(config).layer_kinds[6] == SHORT_CONV


def test_text_only_k3_is_told_by_its_fields() -> None:
    """Kimi-K3's inner config calls itself Kimi-Linear; alone it is still Kimi-K3."""
    assert read_config(real_k3()["text_config"]).arch == "kimi-k3"


def test_linear_with_half_of_k3_is_refused() -> None:
    config = real_linear()
    config["attn_res_block_size"] = 12
    with pytest.raises(ConfigError):
        read_config(config)


def test_linear_refuses_the_other_gate() -> None:
    config = real_linear()
    config["linear_attn_config"]["gate_lower_bound"] = -5.0
    with pytest.raises(UnsupportedError, match="gate_lower_bound"):
        read_config(config)


def test_message_names_field_found_and_wanted() -> None:
    config = real_k3()
    config["text_config"]["hidden_act"] = "gelu"
    with pytest.raises(UnsupportedError) as caught:
        read_config(config)
    assert str(caught.value) == (
        "unsupported config value: text_config.hidden_act: found 'gelu', wanted 'situ'"
    )


def test_absent_nope_is_refused() -> None:
    """Without the field the reference code would rotate."""
    config = real_linear()
    del config["mla_use_nope"]
    with pytest.raises(MissingFieldError):
        read_config(config)
