"""The checkpoint generator: the format of the released files, and what its options promise."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from numpy.typing import NDArray
from safetensors import safe_open

from scripts import make_tiny_checkpoint as maker
from tests.compare import assert_close
from tests.conftest import CheckpointFactory
from tests.reference import ReferenceModel
from tests.reference.checkpoint import Stored, read_index

ARCHS = ("k3", "kimi-linear")

# The real models, and what is published or computed about their files.
REAL_K3: dict[str, Any] = {
    "vocab_size": 163840,
    "hidden_size": 7168,
    "num_hidden_layers": 93,
    "num_attention_heads": 96,
    "intermediate_size": 33792,
    "attn_res_block_size": 12,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "moe_intermediate_size": 3072,
    "routed_expert_hidden_size": 3584,
    "num_heads": 96,
}
REAL_K3_TENSORS = 497_220
REAL_K3_VISION_TENSORS = 27 * 6 + 3 + 3
REAL_K3_EXPERT_BYTES = 1_446_456_066_048
REAL_K3_OTHER_TEXT_BYTES = 113_509_540_864


def stored_tensors(folder: Path) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors.update(read_index(shard))
    return tensors


def test_plan_at_the_real_size_has_the_published_bytes() -> None:
    """Names, shapes and dtypes together: any wrong one of them changes the count or a sum."""
    config = maker.build_config("k3", "mxfp4", "bf16", {**REAL_K3, "head_dim": 128})
    plan = maker.TensorPlan(config["text_config"], "k3", 1, "mxfp4", "bf16", 1.0)
    count = expert_bytes = other_bytes = 0
    for tensor in plan.all_tensors():
        if tensor.name.startswith("language_model."):
            count += 1
            if ".experts." in tensor.name:
                expert_bytes += tensor.nbytes
            else:
                other_bytes += tensor.nbytes
    assert count + REAL_K3_VISION_TENSORS == REAL_K3_TENSORS
    assert expert_bytes == REAL_K3_EXPERT_BYTES
    assert other_bytes == REAL_K3_OTHER_TEXT_BYTES


def test_real_layer_lists() -> None:
    kda, full = maker.default_layer_lists(93)
    assert full == [*range(4, 93, 4), 93]
    assert sorted(kda + full) == list(range(1, 94))


def test_k3_quirks(tiny_checkpoint: CheckpointFactory) -> None:
    folder = tiny_checkpoint("k3")
    tensors = stored_tensors(folder)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    linear = text["linear_attn_config"]
    assert linear["full_attn_layers"] == [4, 8, 9]
    assert linear["kda_layers"] == [1, 2, 3, 5, 6, 7]
    layers = "language_model.model.layers"
    a_log = tensors[f"{layers}.0.self_attn.A_log"]
    assert (a_log.dtype, a_log.shape) == ("F32", (128,))
    kda_width, mla_width = 4 * linear["head_dim"], 4 * text["v_head_dim"]
    assert tensors[f"{layers}.0.self_attn.g_proj.weight"].shape == (kda_width, text["hidden_size"])
    assert tensors[f"{layers}.3.self_attn.g_proj.weight"].shape == (mla_width, text["hidden_size"])
    expert = f"{layers}.1.block_sparse_moe.experts.0.w2"
    assert tensors[f"{expert}.weight_packed"].shape == (32, 96 // 2)
    assert tensors[f"{expert}.weight_scale"].shape == (32, 96 // 32)
    packed = {name for name, tensor in tensors.items() if tensor.dtype == "U8"}
    assert all(".experts." in name for name in packed)
    in_f32 = {
        name.split(".self_attn.")[-1].split(".gate.")[-1] for name, t in tensors.items() if t.dtype == "F32"
    }
    convs = {f"{part}_conv1d.weight" for part in "qkv"}
    assert in_f32 == {"A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias", *convs}
    assert any(name.startswith("vision_tower.") for name in tensors)
    assert any(name.startswith("mm_projector.") for name in tensors)


def test_kimi_linear_quirks(tiny_checkpoint: CheckpointFactory) -> None:
    tensors = stored_tensors(tiny_checkpoint("kimi-linear"))
    assert tensors["model.layers.0.self_attn.A_log"].shape == (1, 1, 4, 1)
    assert {tensor.dtype for name, tensor in tensors.items() if ".experts." in name} == {"BF16"}
    assert "model.layers.0.self_attn.g_a_proj.weight" in tensors
    assert "model.layers.3.self_attn.q_proj.weight" in tensors
    assert not any("res_proj" in name or "routed_expert" in name for name in tensors)


@pytest.mark.parametrize("arch", ARCHS)
def test_index_and_shards_agree(tiny_checkpoint: CheckpointFactory, arch: str) -> None:
    """Read by the safetensors package, which also refuses a wrong header."""
    folder = tiny_checkpoint(arch, shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for shard in folder.glob("*.safetensors"):
        with safe_open(shard, framework="numpy") as file:
            found.update({name: shard.name for name in file.keys()})  # noqa: SIM118 (not a dict)
    assert found == index["weight_map"]
    assert len(set(found.values())) == 3
    total = sum(tensor.end - tensor.start for tensor in stored_tensors(folder).values())
    assert index["metadata"]["total_size"] == total


def test_values_depend_on_seed_and_name_only(tmp_path: Path, tiny_checkpoint: CheckpointFactory) -> None:
    maker.write_checkpoint(tmp_path / "again", "k3", 1, shards=5)
    maker.write_checkpoint(tmp_path / "other", "k3", 2)
    first, again, other = (
        ReferenceModel(folder).forward([1, 2, 3])
        for folder in (tiny_checkpoint("k3"), tmp_path / "again", tmp_path / "other")
    )
    assert_close(again, first, max_abs=0.0)
    assert np.abs(other - first).max() > 0.1


def test_expert_forms_hold_the_same_numbers(tiny_checkpoint: CheckpointFactory) -> None:
    wanted = ReferenceModel(tiny_checkpoint("k3")).forward([5, 6, 7])
    for experts in ("bf16", "f32"):
        found = ReferenceModel(tiny_checkpoint("k3", experts=experts)).forward([5, 6, 7])
        assert_close(found, wanted, max_abs=0.0, what=experts)


def test_bf16_is_the_rounding_of_f32(tiny_checkpoint: CheckpointFactory) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    rounded = ReferenceModel(tiny_checkpoint("k3")).checkpoint.tensor(name)
    exact = ReferenceModel(tiny_checkpoint("k3", dtype="f32")).checkpoint.tensor(name)
    assert np.all(np.abs(rounded - exact) <= np.abs(exact) * 2.0**-8)
    assert np.any(rounded != exact)


def test_logits_are_of_useful_size(tiny_checkpoint: CheckpointFactory) -> None:
    for arch in ARCHS:
        logits = ReferenceModel(tiny_checkpoint(arch)).forward(np.arange(100))
        assert 3 < np.abs(logits).max() < 15, arch


@pytest.mark.parametrize("arch", ARCHS)
def test_every_tensor_matters(tiny_checkpoint: CheckpointFactory, arch: str) -> None:
    """A neutral value (norm weights at 1, all else at 0) in every layer moves some logit by at least 0.1."""
    folder = tiny_checkpoint(arch)
    tokens = np.arange(0, 600, 20)
    wanted = ReferenceModel(folder).forward(tokens)
    used = ReferenceModel(folder).checkpoint.unread
    names = {re.sub(r"\.weight_(packed|scale)$", ".weight", name) for name in used}
    for kind in sorted({re.sub(r"\.\d+\.", ".N.", name) for name in names}):
        model = ReferenceModel(folder)
        for name in names:
            if re.sub(r"\.\d+\.", ".N.", name) == kind:
                value = model.checkpoint.tensor(name)
                value[...] = 1.0 if value.ndim == 1 and "norm" in name else 0.0
        assert np.abs(model.forward(tokens) - wanted).max() > 0.1, kind


def test_mxfp4_takes_the_nearest_value() -> None:
    """Every value lands within half a step of the grid, and grid values stay as they are."""
    random = np.random.default_rng(0)
    values = (random.standard_normal((8, 64)) * np.exp2(random.integers(-9, 9, (8, 1)))).astype(np.float32)
    packed, scale = maker.mxfp4_quantize(values)
    restored = maker.mxfp4_dequantize(packed, scale)
    step = np.repeat(np.exp2(scale.astype(np.float64) - 127), 32, axis=1)
    grid = np.concatenate([-maker.E2M1_MAGNITUDES, maker.E2M1_MAGNITUDES])
    nearest = np.abs(values[..., None] - step[..., None] * grid).min(axis=-1)
    assert_close(np.abs(values - restored), nearest, max_abs=0.0)
    assert_close(maker.mxfp4_dequantize(*maker.mxfp4_quantize(restored)), restored, max_abs=0.0)


@pytest.mark.parametrize(("arch", "stop"), [("k3", "<|end_of_msg|>"), ("kimi-linear", "<|im_end|>")])
def test_tokenizer_files(tiny_checkpoint: CheckpointFactory, arch: str, stop: str) -> None:
    folder = tiny_checkpoint(arch)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    lines = (folder / "tiktoken.model").read_text().split("\n")[:-1]
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    assert len(ranks) == text["vocab_size"] - 256
    encoding = tiktoken.Encoding("tiny", pat_str=r"(?s:.+)", mergeable_ranks=ranks, special_tokens={})
    for token, rank in ranks.items():
        assert encoding._encode_single_piece(token) == [rank], token
    specials = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert sorted(map(int, specials)) == list(range(len(ranks), text["vocab_size"]))
    generation = json.loads((folder / "generation_config.json").read_text())
    assert specials[str(generation["eos_token_id"])]["content"] == stop
    assert text["eos_token_id"] == generation["eos_token_id"] == len(ranks) + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "kimi"}, "arch: found 'kimi'"),
        ({"experts": "q8_0"}, "experts: found 'q8_0'"),
        ({"dtype": "f16"}, "dtype: found 'f16'"),
        ({"shards": 0}, "shards: found 0"),
        ({"vocab_size": 500}, "vocab_size: found 500"),
        ({"moe_intermediate_size": 40}, "moe_intermediate_size: found 40"),
        ({"num_layers": 5}, "unknown config field 'num_layers'"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        maker.write_checkpoint(**{"out_dir": tmp_path, "arch": "k3", "seed": 1, **arguments})


def test_layer_lists_follow_the_number_of_layers(tmp_path: Path) -> None:
    config = maker.write_checkpoint(tmp_path, "k3", 1, num_hidden_layers=5)
    assert config["text_config"]["linear_attn_config"]["full_attn_layers"] == [4, 5]
    logits: NDArray[np.float64] = ReferenceModel(tmp_path).forward([1, 2])
    assert np.isfinite(logits).all()
