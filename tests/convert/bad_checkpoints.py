"""Broken checkpoints, each with the error that the converter must answer it with.

    python tests/convert/bad_checkpoints.py OUT_DIR

writes one folder per case, every file under 64 KB, and `manifest.json`, {folder: label of the error}. Each
case breaks one thing of a small valid Kimi-K3 checkpoint of two shards.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

from convert import errors as e
from tests.convert.small_checkpoint import (
    EOM,
    MERGED,
    N_RANKS,
    PACKING,
    VOCAB,
    SmallCheckpoint,
    Tensor,
    small_k3,
)

MAX_FILE_BYTES = 64 << 10
LAYER1 = "language_model.model.layers.1."
MLA = "language_model.model.layers.2.self_attn."
EXPERT = f"{LAYER1}block_sparse_moe.experts.1.w1.weight"

Change = Callable[[SmallCheckpoint], object]


@dataclass(frozen=True)
class Case:
    name: str
    error: type[e.ConvertError]
    change: Change


def base() -> SmallCheckpoint:
    """The valid checkpoint: layer 0 and the embedding in the first shard, the rest in the second."""
    checkpoint = small_k3()
    checkpoint.shard_of = lambda name: 0 if "layers.0." in name or "embed" in name else 1
    return checkpoint


def write_case(case: Case, folder: Path) -> Path:
    checkpoint = base()
    case.change(checkpoint)
    checkpoint.write(folder)
    for name, data in checkpoint.extra_files.items():
        if data == ABSENT:
            (folder / name).unlink()
    return folder


def cases() -> list[Case]:
    """All cases."""
    found = [*_file_cases(), *_header_cases(), *_tensor_cases(), *_config_cases(), *_layer_cases()]
    return [*found, *_vocab_cases()]


ABSENT = b"absent"


def _file(name: str, data: bytes) -> Change:
    return lambda c: c.extra_files.update({name: data})


def _index(edit: Callable[[dict[str, Any]], object]) -> Change:
    def change(checkpoint: SmallCheckpoint) -> None:
        checkpoint.edit_index = lambda index: _nothing(edit(index))

    return change


def _nothing(_: object) -> None:
    return None


def _file_cases() -> list[Case]:
    index, single = "model.safetensors.index.json", "model-00002-of-000002.safetensors"
    nested = b"[" * 20000 + b"]" * 20000
    name = f"{LAYER1}input_layernorm.weight"
    return [
        Case("no_config", e.CheckpointError, _file("config.json", ABSENT)),
        Case("no_index", e.CheckpointError, _file(index, ABSENT)),
        Case("config_not_json", e.JsonError, _file("config.json", b"{")),
        Case("config_list", e.JsonError, _file("config.json", b"[]")),
        Case("config_nan", e.JsonError, _file("config.json", b'{"a": NaN}')),
        Case("config_nested", e.JsonError, _file("config.json", nested)),
        Case("config_twice", e.DuplicateNameError, _file("config.json", b'{"a": 1, "a": 2}')),
        Case("config_not_utf8", e.JsonError, _file("config.json", b'{"\xff": 1}')),
        Case("index_empty", e.IndexFileError, _file(index, b"{}")),
        Case(
            "index_outside", e.IndexFileError, _index(lambda i: i["weight_map"].update(x="../x.safetensors"))
        ),
        Case("index_number", e.IndexFileError, _index(lambda i: i["weight_map"].update(x=7))),
        Case("index_twice", e.DuplicateNameError, _file(index, b'{"weight_map": {"a": "b", "a": "b"}}')),
        Case("shard_absent", e.MissingShardError, _file(single, ABSENT)),
        Case("index_extra", e.MissingTensorError, _index(lambda i: i["weight_map"].update(x=single))),
        Case("index_lacks", e.UnknownTensorError, _index(lambda i: i["weight_map"].pop(name))),
        Case("index_other", e.MissingTensorError, _index(_other_shard)),
        Case("shard_copied", e.DuplicateTensorError, _copy_shard),
    ]


def _other_shard(index: dict[str, Any]) -> None:
    """A tensor of the second shard that the index puts into the first."""
    index["weight_map"][f"{LAYER1}input_layernorm.weight"] = "model-00001-of-000002.safetensors"


def _copy_shard(checkpoint: SmallCheckpoint) -> None:
    """The second shard's bytes under the first one's name: all its tensors are there twice."""
    names = [name for name in checkpoint.tensors if checkpoint.shard_of and checkpoint.shard_of(name) == 1]
    checkpoint.extra_files["model-00001-of-000002.safetensors"] = checkpoint.shard_bytes(names)


def _shard(edit: Callable[[bytes], bytes]) -> Change:
    def change(checkpoint: SmallCheckpoint) -> None:
        checkpoint.edit_shard = edit

    return change


def _entry(edit: Callable[[dict[str, Any]], object]) -> Change:
    """Edits the last entry of each shard's header."""

    def change(checkpoint: SmallCheckpoint) -> None:
        checkpoint.edit_header = lambda header: _nothing(edit(list(header.values())[-1]))

    return change


def _move(begin: int, end: int) -> Change:
    def edit(entry: dict[str, Any]) -> None:
        offsets = entry["data_offsets"]
        entry["data_offsets"] = [offsets[0] + begin, offsets[1] + end]

    return _entry(edit)


def _header_length(length: int) -> Change:
    return _shard(lambda data: struct.pack("<Q", length) + data[8:])


def _repeat_name(data: bytes) -> bytes:
    """The shard with its first tensor's header entry twice."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    name = list(header)[1]
    text = data[8 : 8 + length].rstrip()[:-1] + f', "{name}": {json.dumps(header[name])}}}'.encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def _header_cases() -> list[Case]:
    return [
        Case("shard_empty", e.TruncatedShardError, _shard(lambda data: b"")),
        Case("shard_cut_in_length", e.TruncatedShardError, _shard(lambda data: data[:5])),
        Case("shard_cut_in_header", e.TruncatedShardError, _shard(lambda data: data[:100])),
        Case("shard_cut_in_data", e.TruncatedShardError, _shard(lambda data: data[:-1])),
        Case("shard_too_long", e.HoleError, _shard(lambda data: data + b"\0")),
        Case("header_giant", e.HeaderSizeError, _header_length(100_000_001)),
        Case("header_overflow", e.HeaderSizeError, _header_length((1 << 64) - 1)),
        Case("header_beyond_end", e.TruncatedShardError, _header_length(90_000_000)),
        Case("header_not_json", e.JsonError, _header_length(9)),
        Case("header_zero", e.JsonError, _header_length(0)),
        Case("header_twice", e.DuplicateNameError, _shard(_repeat_name)),
        Case("entry_no_dtype", e.HeaderError, _entry(lambda entry: entry.pop("dtype"))),
        Case("entry_odd_dtype", e.DtypeError, _entry(lambda entry: entry.update(dtype="Q4"))),
        Case("entry_number_dtype", e.DtypeError, _entry(lambda entry: entry.update(dtype=[1]))),
        Case("shape_negative", e.ShapeError, _entry(lambda entry: entry.update(shape=[-1]))),
        Case("shape_huge", e.ShapeError, _entry(lambda entry: entry.update(shape=[1 << 49, 1 << 49]))),
        Case("shape_text", e.ShapeError, _entry(lambda entry: entry.update(shape="16"))),
        Case("shape_bool", e.ShapeError, _entry(lambda entry: entry.update(shape=[True]))),
        Case("shape_deep", e.ShapeError, _entry(lambda entry: entry.update(shape=[1] * 9))),
        Case("offsets_reversed", e.HeaderError, _entry(lambda entry: entry["data_offsets"].reverse())),
        Case("offsets_one", e.HeaderError, _entry(lambda entry: entry["data_offsets"].pop())),
        Case("bytes_too_few", e.ByteCountError, _move(0, -2)),
        Case("overlap", e.OverlapError, _move(-2, -2)),
        Case("hole", e.HoleError, _move(2, 2)),
    ]


def _set(name: str, tensor: Tensor) -> Change:
    return lambda c: c.tensors.update({name: tensor})


def _drop(name: str) -> Change:
    return lambda c: c.tensors.pop(name)


def _reshape(name: str, shape: tuple[int, ...]) -> Change:
    def change(checkpoint: SmallCheckpoint) -> None:
        checkpoint.tensors[name].shape = shape

    return change


def _retype(name: str, dtype: str) -> Change:
    def change(checkpoint: SmallCheckpoint) -> None:
        checkpoint.tensors[name].dtype = dtype

    return change


def _value(name: str, index: int, value: float) -> Change:
    """Replaces one value of an F32 tensor."""

    def change(checkpoint: SmallCheckpoint) -> None:
        values = np.frombuffer(checkpoint.tensors[name].data, np.float32).copy()
        values[index] = value
        checkpoint.tensors[name].data = values.tobytes()

    return change


def _pack_latent(checkpoint: SmallCheckpoint) -> None:
    stem = f"{LAYER1}block_sparse_moe.routed_expert_down_proj.weight"
    checkpoint.tensors[f"{stem}_packed"] = Tensor("U8", (32, 8), bytes(256))


def _nan_scale(checkpoint: SmallCheckpoint) -> None:
    tensor = checkpoint.tensors[f"{EXPERT}_scale"]
    tensor.data = tensor.data[:-1] + b"\xff"


def _tensor_cases() -> list[Case]:
    decay = f"{LAYER1}self_attn.A_log"
    small = Tensor("BF16", (1,), bytes(2))
    experts = f"{LAYER1}block_sparse_moe.experts"
    return [
        Case("missing_tensor", e.MissingTensorError, _drop(f"{MLA}o_proj.weight")),
        Case("missing_codes", e.MissingTensorError, _drop(f"{EXPERT}_packed")),
        Case("missing_scales", e.MissingTensorError, _drop(f"{EXPERT}_scale")),
        Case(
            "missing_bias",
            e.MissingTensorError,
            _drop(f"{LAYER1}block_sparse_moe.gate.e_score_correction_bias"),
        ),
        Case("unknown_tensor", e.UnknownTensorError, _set(f"{MLA}rotary.weight", small)),
        Case("unknown_escape", e.UnknownTensorError, _set("model.\x1b[2J\ud800\n", small)),
        Case("expert_left_over", e.UnknownTensorError, _set(f"{experts}.2.w1.weight", small)),
        Case("plain_beside_packed", e.UnknownTensorError, _set(EXPERT, small)),
        Case("prefix_twice", e.DuplicateTensorError, _set("model.norm.weight", small)),
        Case("transposed", e.ShapeError, _reshape(f"{MLA}q_b_proj.weight", (16, 72))),
        Case("vocab_rows", e.ShapeError, lambda c: c.text.update(vocab_size=VOCAB - 1)),
        Case("flat_conv", e.ShapeError, _reshape(f"{LAYER1}self_attn.q_conv1d.weight", (64,))),
        Case("short_codes", e.ShapeError, _reshape(f"{EXPERT}_packed", (16, 32))),
        Case("short_scales", e.ShapeError, _reshape(f"{EXPERT}_scale", (8, 4))),
        Case("short_decay", e.ShapeError, _set(decay, Tensor("F32", (64,), bytes(256)))),
        Case("integer_matrix", e.DtypeError, _retype(f"{MLA}o_proj.weight", "I16")),
        Case("signed_codes", e.DtypeError, _retype(f"{EXPERT}_packed", "I8")),
        Case("half_residual", e.UnpairedError, _drop(f"{LAYER1}mlp_res_norm.weight")),
        Case(
            "other_half_residual", e.UnpairedError, _drop("language_model.model.output_attn_res_proj.weight")
        ),
        Case("packed_latent", e.PackedError, _pack_latent),
        Case("decay_padding", e.HeadPaddingError, _value(decay, 2, 1e-3)),
        Case("decay_nan", e.ValueRangeError, _value(decay, 0, float("nan"))),
        Case("decay_overflow", e.ValueRangeError, _value(decay, 1, 100.0)),
        Case("bias_infinite", e.ValueRangeError, _value(f"{LAYER1}self_attn.dt_bias", 0, float("inf"))),
        Case("nan_scale", e.ValueRangeError, _nan_scale),
    ]


def _text(**values: Any) -> Change:
    return lambda c: c.text.update(values)


def _linear(**values: Any) -> Change:
    return lambda c: c.text["linear_attn_config"].update(values)


def _without(name: str) -> Change:
    return lambda c: c.text.pop(name)


def _config_cases() -> list[Case]:
    unsupported: dict[str, Any] = {
        "hidden_act": "silu", "mla_use_nope": False, "mla_use_output_gate": False, "moe_renormalize": False,
        "moe_router_activation_func": "softmax", "topk_method": "greedy", "num_expert_group": 2,
        "topk_group": 2, "moe_layer_freq": 2, "num_nextn_predict_layers": 1, "tie_word_embeddings": True,
        "attention_bias": True,
        "rope_scaling": {"type": "yarn"}, "latent_moe_use_norm": False, "num_key_value_heads": 1,
    }  # fmt: skip
    ranges: dict[str, Any] = {
        "num_hidden_layers": 0, "hidden_size": 1 << 40, "num_experts": -1, "num_experts_per_token": 3,
        "rms_norm_eps": 0.0, "vocab_size": 10**30, "first_k_dense_replace": 4,
        "max_position_embeddings": 1 << 31, "routed_scaling_factor": -1.0, "activation_situ_beta": 1e300,
    }  # fmt: skip
    types: dict[str, Any] = {
        "hidden_size": "16", "num_attention_heads": 2.0, "vocab_size": True, "rms_norm_eps": "1e-5",
        "linear_attn_config": [], "attn_res_block_size": {},
    }  # fmt: skip
    missing = (
        "kv_lora_rank", "linear_attn_config", "attn_res_block_size", "routed_expert_hidden_size",
        "mla_use_nope", "activation_situ_beta", "q_lora_rank", "routed_scaling_factor",
    )  # fmt: skip
    return [
        *(Case(f"unsupported_{k}", e.UnsupportedError, _text(**{k: v})) for k, v in unsupported.items()),
        *(Case(f"range_{k}", e.FieldRangeError, _text(**{k: v})) for k, v in ranges.items()),
        *(Case(f"type_{k}", e.FieldTypeError, _text(**{k: v})) for k, v in types.items()),
        *(Case(f"missing_{k}", e.MissingFieldError, _without(k)) for k in missing),
        Case(
            "unsupported_packing",
            e.UnsupportedError,
            _text(quantization_config={**PACKING, "format": "int4"}),
        ),
        Case("missing_packing", e.MissingFieldError, _without("quantization_config")),
        Case("unsupported_gate_rank", e.UnsupportedError, _linear(use_full_rank_gate=False)),
        Case("unsupported_conv", e.UnsupportedError, _linear(short_conv_kernel_size=3)),
        Case("unsupported_heads", e.UnsupportedError, _linear(num_heads=4)),
        Case("unsupported_linear_field", e.UnsupportedError, _linear(allow_neg_eigval=True)),
        Case("range_lower_bound", e.FieldRangeError, _linear(gate_lower_bound=5.0)),
        Case(
            "other_class", e.UnsupportedError, lambda c: c.config.update(architectures=["LlamaForCausalLM"])
        ),
        Case("no_class", e.ConfigError, lambda c: c.config.pop("architectures")),
        Case("text_config_text", e.FieldTypeError, lambda c: c.config.update(text_config="x")),
        Case("top_tied", e.UnsupportedError, lambda c: c.config.update(tie_word_embeddings=True)),
    ]


def _layer_cases() -> list[Case]:
    return [
        Case("layer_in_no_list", e.LayerKindError, _linear(kda_layers=[1])),
        Case("layers_from_zero", e.LayerListError, _linear(kda_layers=[0, 1], full_attn_layers=[2])),
        Case("layer_beyond", e.LayerListError, _linear(full_attn_layers=[3, 4])),
        Case("layer_in_both", e.LayerListError, _linear(full_attn_layers=[2, 3])),
        Case("layer_repeated", e.LayerListError, _linear(kda_layers=[1, 2, 2])),
        Case("layer_text", e.LayerListError, _linear(kda_layers=["1", 2])),
        Case("layers_number", e.FieldTypeError, _linear(kda_layers=2)),
    ]


def _ranks(edit: Callable[[list[bytes]], object]) -> Change:
    def change(checkpoint: SmallCheckpoint) -> None:
        lines = checkpoint.ranks.splitlines()
        edit(lines)
        checkpoint.ranks = b"\n".join(lines)

    return change


def _special(token_id: object, entry: Any) -> Change:
    return lambda c: c.tokenizer["added_tokens_decoder"].update({str(token_id): entry})


def _put(index: int, line: bytes) -> Change:
    return _ranks(lambda lines: lines.__setitem__(index, line))


def _vocab_cases() -> list[Case]:
    last = N_RANKS - 1
    too_many = _ranks(lambda lines: lines.extend(b"eA%02dAA== %d" % (i, N_RANKS + i) for i in range(20)))
    return [
        Case("no_ranks", e.MissingVocabError, _file("tiktoken.model", ABSENT)),
        Case("ranks_not_base64", e.VocabError, _put(3, b"!!! 3")),
        Case("ranks_no_number", e.VocabError, _put(3, b"Aw== x")),
        Case("ranks_one_word", e.VocabError, _put(3, b"Aw==")),
        Case("ranks_gap", e.VocabError, _put(last, b"enp6 %d" % (last + 1))),
        Case("ranks_token_twice", e.VocabError, _put(last, b"AA== %d" % last)),
        Case("ranks_no_byte", e.VocabError, _put(7, b"enp6 7")),
        Case("ranks_too_many", e.VocabSizeError, too_many),
        Case("special_beyond", e.VocabSizeError, _special(VOCAB, {"content": "<|x|>"})),
        Case("special_inside", e.SpecialTokenError, _special(len(MERGED), {"content": "<|x|>"})),
        Case("special_twice", e.SpecialTokenError, _special(VOCAB - 2, {"content": "<|end_of_msg|>"})),
        Case("special_surrogate", e.SpecialTokenError, _special(VOCAB - 2, {"content": "\ud800"})),
        Case("special_odd_id", e.SpecialTokenError, _special("one", {"content": "<|x|>"})),
        Case("special_no_text", e.SpecialTokenError, _special(EOM, {})),
        Case("eos_beyond", e.SpecialTokenError, lambda c: c.config.update(eos_token_id=VOCAB)),
        Case("eos_negative", e.SpecialTokenError, lambda c: c.config.update(eos_token_id=-1)),
        Case("eos_text", e.SpecialTokenError, lambda c: c.config.update(eos_token_id="2")),
        Case("eos_three", e.SpecialTokenError, lambda c: c.config.update(eos_token_id=[1, 2, 3])),
        Case("no_bos", e.SpecialTokenError, lambda c: c.config.pop("bos_token_id")),
        Case("template_not_text", e.VocabError, _file("chat_template.jinja", b"\xff\xfe")),
        Case("tokenizer_not_json", e.JsonError, _file("tokenizer_config.json", b"\xff")),
    ]


def main() -> None:
    out = Path(sys.argv[1])
    manifest = {}
    for case in cases():
        write_case(case, out / case.name)
        manifest[case.name] = case.error.label
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1))


if __name__ == "__main__":
    main()
