"""Whole conversions of small checkpoints: values against the checkpoint's, types, splits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from convert import stream
from convert.cli import main
from tests.conftest import CheckpointFactory
from tests.convert.small_checkpoint import (
    EXPERTS,
    HEADS,
    KV_RANK,
    NOPE,
    VALUE,
    SmallCheckpoint,
    small_k3,
    small_linear,
)
from tests.reference.checkpoint import unpack_mxfp4


def convert(folder: Path, out: Path, *options: str) -> int:
    return main([str(folder), "--outfile", str(out), *options])


def read_tensors(path: Path) -> dict[str, tuple[Type, np.ndarray]]:
    """Type and values, in numpy's order of dimensions."""
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = (tensor.tensor_type, values.reshape(tensor.shape[::-1].tolist()))
    return tensors


def source(small: SmallCheckpoint, name: str) -> np.ndarray:
    """A checkpoint tensor's values."""
    tensor = small.tensors.get(f"language_model.{name}") or small.tensors[name]
    if tensor.dtype == "U8":
        return np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape)
    if tensor.dtype == "BF16":
        bits = np.frombuffer(tensor.data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape)
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)


def expert(small: SmallCheckpoint, layer: int, number: int, part: str) -> np.ndarray:
    stem = f"model.layers.{layer}.block_sparse_moe.experts.{number}.{part}.weight"
    if stem in small.tensors:
        return source(small, stem)
    return unpack_mxfp4(source(small, f"{stem}_packed"), source(small, f"{stem}_scale"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("make", [small_k3, small_linear])
def test_values(make: Any, tmp_path: Path) -> None:
    """F32 output: every transform by its formula, every plain matrix as it is."""
    small = make()
    folder = small.write(tmp_path / "checkpoint")
    assert convert(folder, tmp_path / "x.gguf", "--outtype", "f32", "--experts", "f32") == 0
    found = {name: values for name, (_, values) in read_tensors(tmp_path / "x.gguf").items()}
    k3 = "text_config" in small.config
    attention = "model.layers.0.self_attn"
    np.testing.assert_array_equal(found["token_embd.weight"], source(small, "model.embed_tokens.weight"))
    np.testing.assert_array_equal(found["output.weight"], source(small, "lm_head.weight"))
    np.testing.assert_array_equal(
        found["blk.0.ssm_conv1d_k.weight"].reshape(-1, 4), source(small, f"{attention}.k_conv1d.weight")[:, 0]
    )
    decay = -np.exp(source(small, f"{attention}.A_log").reshape(-1)[:HEADS].astype(np.float64))
    np.testing.assert_allclose(found["blk.0.ssm_a"].reshape(-1), decay, rtol=1e-6)
    np.testing.assert_array_equal(found["blk.0.ssm_dt.bias"], source(small, f"{attention}.dt_bias"))
    halves = source(small, "model.layers.2.self_attn.kv_b_proj.weight").reshape(HEADS, NOPE + VALUE, KV_RANK)
    for head in range(HEADS):
        np.testing.assert_array_equal(found["blk.2.attn_k_b.weight"][head], halves[head, :NOPE].T)
        np.testing.assert_array_equal(found["blk.2.attn_v_b.weight"][head], halves[head, NOPE:])
    for number in range(EXPERTS):
        for name, part in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            wanted = expert(small, 1, number, part)
            np.testing.assert_array_equal(found[f"blk.1.ffn_{name}_exps.weight"][number], wanted)
    if k3:
        for name, base in (
            ("output_res_score", "model.output_attn_res"),
            ("blk.1.attn_res_score", "model.layers.1.self_attention_res"),
            ("blk.1.ffn_res_score", "model.layers.1.mlp_res"),
        ):
            product = source(small, f"{base}_norm.weight") * source(small, f"{base}_proj.weight")[0]
            np.testing.assert_array_equal(found[f"{name}.weight"], product)


def test_keep_is_lossless(tmp_path: Path) -> None:
    """Packed experts keep their values exactly; the trunk its BF16 bits."""
    small = small_k3()
    assert convert(small.write(tmp_path / "checkpoint"), tmp_path / "x.gguf") == 0
    found = read_tensors(tmp_path / "x.gguf")
    kind, values = found["blk.2.ffn_down_exps.weight"]
    assert kind == Type.MXFP4
    for number in range(EXPERTS):
        np.testing.assert_array_equal(values[number], expert(small, 2, number, "w2"))
    kind, values = found["blk.1.ffn_routed_down.weight"]
    assert kind == Type.BF16
    wanted = source(small, "model.layers.1.block_sparse_moe.routed_expert_down_proj.weight")
    np.testing.assert_array_equal(values, wanted)


@pytest.mark.parametrize("outtype", ["bf16", "f16", "f32", "q8_0"])
@pytest.mark.parametrize("experts", ["keep", "mxfp4", "q8_0", "bf16", "f32"])
@pytest.mark.parametrize("packed", [True, False])
def test_types(
    tiny_checkpoint: CheckpointFactory, outtype: str, experts: str, packed: bool, tmp_path: Path
) -> None:
    """Every pair of options converts, verifies, and gives the types that it names."""
    folder = tiny_checkpoint("k3") if packed else tiny_checkpoint("kimi-linear", experts="bf16")
    assert convert(folder, tmp_path / "x.gguf", "--outtype", outtype, "--experts", experts, "--verify") == 0
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    kept = "MXFP4" if packed else "BF16"
    assert kinds["blk.1.ffn_gate_exps.weight"] == (kept if experts == "keep" else experts.upper())
    assert kinds["token_embd.weight"] == outtype.upper()
    assert kinds["blk.1.ffn_gate_inp.weight"] == kinds["output_norm.weight"] == "F32"


def test_fallback_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_k3().write(tmp_path / "checkpoint")
    assert convert(folder, tmp_path / "x.gguf", "--outtype", "q8_0", "--verify") == 0
    kinds = {name: kind.name for name, (kind, _) in read_tensors(tmp_path / "x.gguf").items()}
    assert kinds["token_embd.weight"] == "BF16" and kinds["blk.2.attn_k_b.weight"] == "Q8_0"
    out = capsys.readouterr().out
    assert "note: token_embd.weight and " in out
    assert "become BF16: Q8_0 needs rows of a multiple of 32, this has 16" in out


def test_large_tensors_in_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into runs of few rows, with an odd rest, the output is the same."""
    folder = small_k3().write(tmp_path / "checkpoint")
    for outtype in ("bf16", "f32"):
        assert convert(folder, tmp_path / "whole.gguf", "--outtype", outtype) == 0
        with monkeypatch.context() as patch:
            patch.setattr(stream, "UNIT_VALUES", 7 * 16)
            assert convert(folder, tmp_path / "units.gguf", "--outtype", outtype) == 0
        assert digest(tmp_path / "whole.gguf") == digest(tmp_path / "units.gguf")


def split_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("x-*.gguf"))


def test_split(tiny_checkpoint: CheckpointFactory, tmp_path: Path) -> None:
    """Names and keys as llama.cpp's; all tensors once, in the order of the single file."""
    folder = tiny_checkpoint("k3")
    assert convert(folder, tmp_path / "whole.gguf", "--outtype", "f32") == 0
    assert convert(folder, tmp_path / "x.gguf", "--outtype", "f32", "--split-max-size", "1M", "--verify") == 0
    files = split_files(tmp_path)
    count = len(files)
    assert count > 2 and not (tmp_path / "x.gguf").exists()
    assert [path.name for path in files] == [f"x-{n + 1:05d}-of-{count:05d}.gguf" for n in range(count)]
    readers = [gguf.GGUFReader(path) for path in files]
    whole = gguf.GGUFReader(tmp_path / "whole.gguf")
    for number, reader in enumerate(readers):
        names = {name for name in reader.fields if not name.startswith("GGUF.")}
        split = {"split.no": number, "split.count": count, "split.tensors.count": len(whole.tensors)}
        assert {name: reader.fields[name].contents() for name in split} == split
        own = set() if number else {name for name in whole.fields if not name.startswith("GGUF.")}
        assert names == own | split.keys()
        assert sum(int(tensor.n_bytes) for tensor in reader.tensors) <= 10**6 or len(reader.tensors) == 1
    types = [
        readers[0].fields[name].types[0].name for name in ("split.no", "split.count", "split.tensors.count")
    ]
    assert types == ["UINT16", "UINT16", "INT32"]
    parts = [tensor for reader in readers for tensor in reader.tensors]
    assert [tensor.name for tensor in parts] == [tensor.name for tensor in whole.tensors]
    for part, tensor in zip(parts, whole.tensors, strict=True):
        np.testing.assert_array_equal(part.data, tensor.data)
