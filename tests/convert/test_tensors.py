"""The tensor table of the real models: names, shapes and counts as llama.cpp's loader wants them."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

from convert.config import read_config
from convert.match import MatchedTensor
from convert.plan import choose_types
from convert.tensors import Role, TensorSpec, Transform, layer_tensors, model_tensors
from tests.convert.test_config import real_k3, real_linear

D = 12288
LAYER = {"attn_norm": (7168,), "ffn_norm": (7168,), "attn_res_score": (7168,), "ffn_res_score": (7168,)}
K3_KDA = {
    "attn_q": (7168, D), "attn_k": (7168, D), "attn_v": (7168, D), "ssm_conv1d_q": (4, 1, D, 1),
    "ssm_conv1d_k": (4, 1, D, 1), "ssm_conv1d_v": (4, 1, D, 1), "ssm_f_a": (7168, 128), "ssm_f_b": (128, D),
    "ssm_beta": (7168, 96), "ssm_a": (96,), "ssm_dt": (D,), "ssm_g": (7168, D), "ssm_norm": (128,),
    "attn_output": (D, 7168),
}  # fmt: skip
K3_MLA = {
    "attn_q_a": (7168, 1536), "attn_q_a_norm": (1536,), "attn_q_b": (1536, 96 * 192),
    "attn_kv_a_mqa": (7168, 576), "attn_kv_a_norm": (512,), "attn_k_b": (128, 512, 96),
    "attn_v_b": (512, 128, 96), "attn_gate": (7168, D), "attn_output": (D, 7168),
}  # fmt: skip
K3_DENSE = {"ffn_gate": (7168, 33792), "ffn_up": (7168, 33792), "ffn_down": (33792, 7168)}
K3_MOE = {
    "ffn_gate_inp": (7168, 896), "exp_probs_b": (896,), "ffn_gate_exps": (3584, 3072, 896),
    "ffn_up_exps": (3584, 3072, 896), "ffn_down_exps": (3072, 3584, 896), "ffn_routed_down": (7168, 3584),
    "ffn_routed_up": (3584, 7168), "ffn_routed_norm": (3584,), "ffn_gate_shexp": (7168, 6144),
    "ffn_up_shexp": (7168, 6144), "ffn_down_shexp": (6144, 7168),
}  # fmt: skip
LINEAR_KDA = {
    "attn_q": (2304, 4096), "attn_k": (2304, 4096), "attn_v": (2304, 4096), "ssm_conv1d_q": (4, 1, 4096, 1),
    "ssm_conv1d_k": (4, 1, 4096, 1), "ssm_conv1d_v": (4, 1, 4096, 1), "ssm_f_a": (2304, 128),
    "ssm_f_b": (128, 4096), "ssm_beta": (2304, 32), "ssm_a": (1, 32, 1, 1), "ssm_dt": (4096,),
    "ssm_g_a": (2304, 128), "ssm_g_b": (128, 4096), "ssm_norm": (128,), "attn_output": (4096, 2304),
}  # fmt: skip
LINEAR_MLA = {
    "attn_q": (2304, 32 * 192), "attn_kv_a_mqa": (2304, 576), "attn_kv_a_norm": (512,),
    "attn_k_b": (128, 512, 32), "attn_v_b": (512, 128, 32), "attn_output": (4096, 2304),
}  # fmt: skip
LINEAR_MOE = {
    "ffn_gate_inp": (2304, 256), "exp_probs_b": (256,), "ffn_gate_exps": (2304, 1024, 256),
    "ffn_up_exps": (2304, 1024, 256), "ffn_down_exps": (1024, 2304, 256), "ffn_gate_shexp": (2304, 1024),
    "ffn_up_shexp": (2304, 1024), "ffn_down_shexp": (1024, 2304),
}  # fmt: skip
SUFFIXES = {"ssm_a": "", "ssm_dt": ".bias", "exp_probs_b": ".bias"}


def found(specs: list[TensorSpec], layer: int) -> dict[str, tuple[int, ...]]:
    """Shapes by name without `blk.N.`; the suffix must be the right one."""
    shapes = {}
    for spec in specs:
        name = spec.name.removeprefix(f"blk.{layer}.").split(".")[0]
        assert spec.name == f"blk.{layer}.{name}{SUFFIXES.get(name, '.weight')}"
        shapes[name] = spec.ne
    assert len(shapes) == len(specs)
    return shapes


@pytest.mark.parametrize(
    ("layer", "parts"),
    [(0, K3_KDA | K3_DENSE), (1, K3_KDA | K3_MOE), (3, K3_MLA | K3_MOE), (92, K3_MLA | K3_MOE)],
)
def test_k3_layers(layer: int, parts: dict[str, tuple[int, ...]]) -> None:
    assert found(layer_tensors(read_config(real_k3()), layer), layer) == LAYER | parts


@pytest.mark.parametrize(("layer", "parts"), [(2, LINEAR_KDA | LINEAR_MOE), (26, LINEAR_MLA | LINEAR_MOE)])
def test_linear_layers(layer: int, parts: dict[str, tuple[int, ...]]) -> None:
    common = {"attn_norm": (2304,), "ffn_norm": (2304,)}
    assert found(layer_tensors(read_config(real_linear()), layer), layer) == common | parts


def test_k3_counts_and_bytes() -> None:
    """2573 tensors; the experts' 1.4465 TB keep their size; F32 where a vector, a router or a tap is."""
    specs = model_tensors(read_config(real_k3()))
    kinds = {spec.name: "MXFP4" if spec.role == Role.EXPERTS else "BF16" for spec in specs}
    planned = choose_types([MatchedTensor(spec, kinds[spec.name], ()) for spec in specs], "bf16", "keep")
    counts = Counter(tensor.type.name for tensor in planned)
    assert counts == {"F32": 1112, "MXFP4": 276, "BF16": 1185}
    experts = [tensor for tensor in planned if tensor.matched.spec.role == Role.EXPERTS]
    assert sum(tensor.nbytes for tensor in experts) == 1_446_456_066_048
    trunk = [tensor for tensor in planned if tensor.type.name == "BF16"]
    assert sum(tensor.nbytes for tensor in trunk) == 2 * sum(prod(tensor.ne) for tensor in trunk)


def test_f32_set() -> None:
    """Vectors, norms, the router, the convolutions and whatever is no `.weight`; nothing else."""
    for config in (real_k3(), real_linear()):
        for spec in model_tensors(read_config(config)):
            name = spec.name
            wanted = (
                len(spec.ne) == 1
                or not name.endswith(".weight")
                or any(part in name for part in ("_norm.", "ffn_gate_inp.", "ssm_conv1d_"))
            )
            assert (spec.role == Role.F32) == wanted, name


def test_sources_of_shared_names() -> None:
    """g_proj is the output gate of both kinds of layer under one name."""
    hp = read_config(real_k3())
    sources = {
        spec.name: spec.sources[0].name
        for layer in (0, 3)
        for spec in layer_tensors(hp, layer)
        if spec.sources
    }
    assert sources["blk.0.ssm_g.weight"] == "model.layers.0.self_attn.g_proj.weight"
    assert sources["blk.3.attn_gate.weight"] == "model.layers.3.self_attn.g_proj.weight"
    assert "blk.3.ssm_g.weight" not in sources and "blk.0.attn_gate.weight" not in sources


def test_experts_order() -> None:
    """w1 is the gate, w3 the up and w2 the down projection."""
    specs = [s for s in layer_tensors(read_config(real_k3()), 1) if s.transform == Transform.EXPERTS]
    parts = {spec.name.split(".")[2]: spec.sources[0].name[-2:] for spec in specs}
    assert parts == {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}
