"""The random models for speed measurements: sizes, sizes of values, and that both engines run them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from convert.config import KIMI_LINEAR, HyperParameters
from llama_k3 import Model
from scripts.bench_model.blocks import Source
from scripts.bench_model.cli import main
from scripts.bench_model.shapes import K3_MID, K3_SLICE, LINEAR_SLICE, layer_kinds
from scripts.bench_model.weights import f32_values, matrix_rms
from scripts.bench_model.writer import lay_out, write_model
from tests.test_make_tiny_checkpoint import REAL_K3

ROOT = Path(__file__).resolve().parent.parent
ORACLE = "tests.oracles.llamacpp_logits"
SMALL: dict[str, Any] = {
    "n_layer": 4,
    "layer_kinds": layer_kinds(4),
    "n_embd": 256,
    "n_vocab": 640,
    "n_head": 4,
    "kda_head_dim": 64,
    "n_ff": 256,
    "kv_lora_rank": 128,
    "qk_nope_dim": 64,
    "qk_rope_dim": 32,
    "v_head_dim": 64,
    "n_expert": 16,
    "n_expert_used": 4,
    "n_ff_expert": 128,
}
SMALL_K3 = dataclasses.replace(K3_MID, **SMALL, q_lora_rank=128, n_latent=128)
SMALL_LINEAR = dataclasses.replace(LINEAR_SLICE, **SMALL)
SMALL_MODELS = pytest.mark.parametrize("hp", [SMALL_K3, SMALL_LINEAR], ids=["k3", "linear"])


def test_the_middling_model_has_its_sizes() -> None:
    """As laid out, without writing them: 677 M parameters, 409 MiB, 162 MB read per token."""
    model = lay_out(K3_MID, "x")
    assert round(model.n_params / 1e6) == pytest.approx(677, abs=1)
    assert model.nbytes / 2**20 == pytest.approx(409, abs=1)
    assert round(model.bytes_per_token / 1e6) == 162
    by_name = {tensor.spec.name: tensor for tensor in model.tensors}
    assert by_name["blk.1.ffn_up_exps.weight"].type == Type.MXFP4
    assert by_name["blk.1.ffn_up_exps.weight"].spec.ne == (512, 512, 64)
    assert by_name["blk.3.attn_q_b.weight"].type == Type.Q8_0
    assert sum("attn_kv_a_mqa" in name for name in by_name) == 3


def test_slices_have_the_real_widths() -> None:
    real = {
        "n_embd": REAL_K3["hidden_size"],
        "n_head": REAL_K3["num_attention_heads"],
        "kda_head_dim": 128,
        "q_lora_rank": REAL_K3["q_lora_rank"],
        "kv_lora_rank": REAL_K3["kv_lora_rank"],
        "qk_nope_dim": REAL_K3["qk_nope_head_dim"],
        "qk_rope_dim": REAL_K3["qk_rope_head_dim"],
        "v_head_dim": REAL_K3["v_head_dim"],
        "n_expert_used": REAL_K3["num_experts_per_token"],
        "n_ff_expert": REAL_K3["moe_intermediate_size"],
        "n_latent": REAL_K3["routed_expert_hidden_size"],
        "n_ff_shared": 6144,
    }
    assert {name: getattr(K3_SLICE, name) for name in real} == real
    assert K3_SLICE.layer_kinds == LINEAR_SLICE.layer_kinds == ("kda", "kda", "kda", "mla")
    assert (LINEAR_SLICE.arch, LINEAR_SLICE.n_embd, LINEAR_SLICE.n_head) == (KIMI_LINEAR, 2304, 32)


@pytest.mark.parametrize("qtype", [Type.F32, Type.BF16, Type.Q8_0, Type.MXFP4])
@pytest.mark.parametrize("rms", [1.0, 0.0118])
def test_values_have_the_wanted_size(qtype: Type, rms: float) -> None:
    """By gguf's dequantiser: root mean square within 2 %, mean and neighbours' correlation near 0."""
    raw = Source(1, 2).values(qtype, 1 << 20, rms)
    values = gguf.quants.dequantize(raw, qtype).astype(np.float64)
    assert values.shape == (1 << 20,)
    assert np.sqrt(np.mean(values**2)) == pytest.approx(rms, rel=0.02)
    assert abs(values.mean()) < 0.02 * rms
    assert abs(np.mean(values[1:] * values[:-1])) < 0.02 * rms**2


def test_no_code_that_a_quantiser_never_writes() -> None:
    blocks = Source(1).values(Type.Q8_0, 1 << 16, 1.0).reshape(-1, 34)
    assert blocks[:, 2:].view(np.int8).min() == -127


def test_decay_gates_forget_slowly() -> None:
    """With no input, exp(g) of K3's and of Kimi-Linear's gate: a channel keeps 1 to 1000 tokens in mind."""
    for hp in (SMALL_K3, SMALL_LINEAR):
        values = {
            name: f32_values(tensor.spec, hp, Source(1)).astype(np.float64)
            for tensor in lay_out(hp, "x").tensors
            if (name := tensor.spec.name) in ("blk.0.ssm_a", "blk.0.ssm_dt.bias")
        }
        a = values["blk.0.ssm_a"].reshape(-1, 1)
        z = values["blk.0.ssm_dt.bias"].reshape(hp.n_head, hp.kda_head_dim)
        k3_gate, linear_gate = -5 / (1 + np.exp(a * z)), a * np.log1p(np.exp(z))
        kept = np.exp(k3_gate if hp.is_k3 else linear_gate)
        assert kept.min() > 0.1 and kept.max() < 0.99999
        assert np.median(kept) > 0.8


def test_mla_keys_have_the_size_of_their_latent() -> None:
    """attn_k_b is stored transposed: a key of the second dimension's inputs."""
    specs = {tensor.spec.name: tensor.spec for tensor in lay_out(K3_MID, "x").tensors}
    assert matrix_rms(specs["blk.3.attn_k_b.weight"]) ** 2 * K3_MID.kv_lora_rank == pytest.approx(1)
    assert matrix_rms(specs["blk.3.attn_v_b.weight"]) ** 2 * K3_MID.kv_lora_rank == pytest.approx(1)
    assert matrix_rms(specs["blk.1.ffn_down_exps.weight"]) ** 2 * K3_MID.n_ff_expert == pytest.approx(1)


@SMALL_MODELS
def test_runs_for_hundreds_of_tokens(hp: HyperParameters, tmp_path: Path) -> None:
    """Logits stay finite and of one size from the first token on."""
    write_model(lay_out(hp, "small"), tmp_path / "x.gguf", seed=1)
    tokens = np.random.default_rng(5).integers(0, hp.n_vocab, 400)
    with Model(tmp_path / "x.gguf", n_threads=1) as model, model.context(n_ctx=512) as context:
        assert model.info.n_params == lay_out(hp, "small").n_params
        sizes = [context.decode(tokens[:100], logits="all").std(axis=1)]
        sizes += [context.decode([int(token)]).std(axis=1) for token in tokens[100:]]
    spread = np.concatenate(sizes)
    assert spread.min() > 0.8 and spread.max() < 3
    assert spread[-100:].mean() == pytest.approx(spread[:100].mean(), rel=0.1)


@SMALL_MODELS
def test_loads_in_llama_cpp(hp: HyperParameters, tmp_path: Path) -> None:
    """With this vocabulary; the likeliest tokens are the same here, up to what 8-bit activations change."""
    write_model(lay_out(hp, "small"), tmp_path / "x.gguf", seed=1)
    tokens = [3, 200, 31, 7, 99]
    command = [sys.executable, "-m", ORACLE, str(tmp_path / "x.gguf"), "--tokens", ",".join(map(str, tokens))]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = [token for token, _ in json.loads(done.stdout)["positions"][0]["top"]]
    with Model(tmp_path / "x.gguf", n_threads=1) as model, model.context(n_ctx=64) as context:
        ours = np.argsort(-context.decode(tokens)[0])[: len(theirs)].tolist()
    assert len(set(ours) & set(theirs)) >= len(theirs) // 2


def test_types_and_seeds(tmp_path: Path) -> None:
    """Equal seeds give equal files; the options decide the types."""
    names = ("a", "b", "c", "d")
    for name, seed, trunk, experts in zip(
        names,
        (1, 1, 2, 1),
        ("q8_0", "q8_0", "q8_0", "bf16"),
        ("mxfp4", "mxfp4", "mxfp4", "q8_0"),
        strict=True,
    ):
        write_model(lay_out(SMALL_LINEAR, "small", trunk, experts), tmp_path / name, seed)
    contents = {name: (tmp_path / name).read_bytes() for name in names}
    assert contents["a"] == contents["b"] and contents["a"] != contents["c"]
    types = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(tmp_path / "d").tensors}
    assert types["blk.1.ffn_down_exps.weight"] == Type.Q8_0
    assert types["blk.0.attn_q.weight"] == Type.BF16
    assert types["blk.1.ffn_gate_inp.weight"] == Type.F32


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def stop(nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_model(lay_out(SMALL_K3, "small"), tmp_path / "x.gguf", 1, stop)
    assert not list(tmp_path.iterdir())


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k3-mid", "--outfile", str(tmp_path / "x.gguf"), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("k3-mid: 677.5 M parameters")
    assert not list(tmp_path.iterdir())
    assert main(["k3-mid", "--outfile", str(tmp_path / "none" / "x.gguf")]) == 1
    assert "No such file" in capsys.readouterr().err
