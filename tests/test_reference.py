"""The reference model against itself (two ways to the same result) and against other engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from scripts.make_tiny_checkpoint import write_checkpoint
from tests.compare import assert_close, difference
from tests.conftest import TESTS, CheckpointFactory
from tests.reference import ReferenceModel, functions, kda, mla, separated_tokens
from tests.reference.checkpoint import Array, unpack_mxfp4

Tokens = NDArray[np.int64]

ARCHS = ("k3", "kimi-linear")
# Two float64 evaluations of the same formula in another order; logits reach 10.
SAME = 1e-9
# Float32 engines against float64: what the project allows everywhere.
FLOAT32 = 2e-4


@pytest.fixture(scope="module", params=ARCHS)
def model(request: pytest.FixtureRequest, tiny_checkpoint: CheckpointFactory) -> ReferenceModel:
    return ReferenceModel(tiny_checkpoint(request.param))


def random_tokens(model: ReferenceModel, count: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, model.n_vocab, count)


# ---- two ways to the same result -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 130])
def test_chunked_and_plain_forms_equal_recurrent_and_absorbed(model: ReferenceModel, count: int) -> None:
    tokens = random_tokens(model, count)
    wanted = model.forward(tokens, kda="recurrent", mla="absorbed")
    assert_close(model.forward(tokens, kda="chunked", mla="plain"), wanted, max_abs=SAME, argmax=True)


@pytest.mark.parametrize("cuts", [[1, 2, 3], [3, 40, 41], [64, 65], [100]])
@pytest.mark.parametrize("forms", [("recurrent", "absorbed"), ("chunked", "plain")])
def test_continuing_equals_the_whole(model: ReferenceModel, cuts: list[int], forms: tuple[str, str]) -> None:
    tokens = random_tokens(model, 110)
    state = model.new_state()
    parts = [model.step(part, state, *forms) for part in np.split(tokens, cuts)]
    assert_close(np.concatenate(parts), model.forward(tokens), max_abs=SAME)
    assert state.position == len(tokens)


def test_later_tokens_do_not_change_earlier_logits(model: ReferenceModel) -> None:
    tokens = random_tokens(model, 70)
    longer = model.forward(tokens, kda="chunked", mla="plain")
    assert_close(longer[:20], model.forward(tokens[:20], kda="chunked", mla="plain"), max_abs=SAME)


class DeltaInput(NamedTuple):
    """What a delta rule reads: q, k, v, g [T, h, D], beta [T, h], memory [h, D, D]."""

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array
    memory: Array


def delta_rule_input(tokens: int, heads: int = 3, dim: int = 8) -> DeltaInput:
    """Random values with unit keys and no decay."""
    random = np.random.default_rng(5)
    q, k, v = random.standard_normal((3, tokens, heads, dim))
    beta = random.uniform(0, 1, (tokens, heads))
    memory = random.standard_normal((heads, dim, dim))
    return DeltaInput(q, functions.l2_norm(k), v, np.zeros_like(q), beta, memory)


def assert_chunked_equals_recurrent(inputs: DeltaInput, chunk: int) -> None:
    wanted, wanted_memory = kda.delta_rule_recurrent(*inputs)
    found, found_memory = kda.delta_rule_chunked(*inputs, chunk=chunk)
    assert_close(found, wanted, max_abs=SAME, what="output")
    assert_close(found_memory, wanted_memory, max_abs=SAME, what="memory")


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("decay", ["none", "full bound", "mixed", "beyond exp", "subnormal"])
def test_chunked_delta_rule_with_extreme_gates(chunk: int, decay: str) -> None:
    """64 rows at -5 sum to -320, at -80 to -5120: exp of the negated sum overflows, of differences never."""
    inputs = delta_rule_input(tokens=75)
    random = np.random.default_rng(6)
    shape = inputs.g.shape
    gates = {
        "none": np.zeros(shape),
        "full bound": np.full(shape, -5.0),
        "mixed": random.choice([0.0, -1e-6, -0.5, -5.0], shape),
        "beyond exp": random.choice([0.0, -80.0, -800.0], shape),
        "subnormal": np.full(shape, -1e-300),
    }
    assert_chunked_equals_recurrent(inputs._replace(g=gates[decay]), chunk)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_chunked_delta_rule_with_extreme_beta(beta: float) -> None:
    inputs = delta_rule_input(tokens=75)
    inputs = inputs._replace(g=inputs.g - 0.1, beta=np.full_like(inputs.beta, beta))
    assert_chunked_equals_recurrent(inputs, chunk=64)


def test_zero_rows_after_a_chunk_change_nothing() -> None:
    """What the tail chunk is filled up with: q, k, v, g and beta zero."""
    inputs = delta_rule_input(tokens=20)
    inputs = inputs._replace(g=inputs.g - 0.3)
    q, k, v, g, beta = (np.concatenate([x, np.zeros_like(x)]) for x in inputs[:5])
    wanted, wanted_memory = kda.delta_rule_recurrent(*inputs)
    found, found_memory = kda.delta_rule_recurrent(q, k, v, g, beta, inputs.memory)
    assert_close(found[:20], wanted, max_abs=0.0)
    assert_close(found_memory, wanted_memory, max_abs=0.0)


def test_delta_rule_replaces_a_value() -> None:
    """With beta 1 and no decay, reading with the last key gives the last value, whatever was there before."""
    inputs = delta_rule_input(tokens=30)
    unit_k = inputs.k / np.linalg.norm(inputs.k, axis=-1, keepdims=True)
    inputs = inputs._replace(q=unit_k, k=unit_k, beta=np.ones_like(inputs.beta))
    out, _ = kda.delta_rule_recurrent(*inputs)
    assert_close(out, inputs.v, max_abs=SAME)


# ---- single functions ----------------------------------------------------------------------------------


def test_decay_gates_at_extreme_inputs() -> None:
    z = np.array([-1e4, -30.0, 0.0, 30.0, 1e4]).reshape(5, 1, 1)
    bounded = kda.decay_gate(z, np.array([0.0]), -5.0).ravel()
    assert_close(bounded, [0.0, -5 * np.exp(-30), -2.5, -5.0, -5.0], max_abs=1e-12)
    unbounded = kda.decay_gate(z, np.array([np.log(2.0)]), None).ravel()
    assert_close(unbounded, [0.0, -2 * np.exp(-30), -2 * np.log(2), -60.0, -2e4], max_abs=1e-12)


def test_situ_is_bounded_and_near_swiglu_for_small_inputs() -> None:
    large = np.array([1e3, -1e3])
    assert_close(functions.situ_glu(large, large, 4.0, 25.0), [100.0, 0.0], max_abs=1e-9)
    assert_close(functions.situ_glu(large, large, 4.0, None), [4000.0, 0.0], max_abs=1e-9)
    small = np.array([1e-3, -1e-3])
    assert_close(functions.situ_glu(small, small, 4.0, 25.0), functions.silu(small) * small, nmse=1e-12)


def test_mxfp4_values_from_the_bit_fields() -> None:
    """E2M1: sign, two exponent bits with bias 1, one mantissa bit; E8M0: a power of two with bias 127."""
    packed = np.arange(256, dtype=np.uint8).reshape(16, 16)
    scale = np.linspace(0, 254, 16).astype(np.uint8).reshape(16, 1)
    found = unpack_mxfp4(packed, scale)
    for row in range(16):
        for column in range(32):
            byte = int(packed[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            exponent, mantissa = (code >> 1) & 3, code & 1
            magnitude = 0.5 * mantissa if exponent == 0 else (1 + 0.5 * mantissa) * 2.0 ** (exponent - 1)
            wanted = (-1) ** (code >> 3) * magnitude * 2.0 ** (int(scale[row, 0]) - 127)
            assert found[row, column] == wanted
    assert np.isnan(unpack_mxfp4(packed, np.full((16, 1), 255, dtype=np.uint8))).all()


def test_every_text_tensor_is_used(model: ReferenceModel) -> None:
    """Layer 0 of K3 has no stored block before its attention, so that one mix has no effect."""
    model.forward(random_tokens(model, 200))
    allowed = {f"model.layers.0.self_attention_res_{part}.weight" for part in ("norm", "proj")}
    wanted = allowed if model.config.attn_res_block else set()
    assert model.checkpoint.unread == wanted


def test_trace_holds_the_inputs_of_every_sublayer(model: ReferenceModel) -> None:
    trace: dict[str, Array] = {}
    logits = model.forward([1, 2, 3], trace=trace)
    for layer in range(model.config.num_layers):
        for name in ("attn_in", "attn_out", "ffn_in", "ffn_out"):
            assert trace[f"{layer}.{name}"].shape == trace["head_in"].shape
    head = model.checkpoint.tensor("lm_head.weight")
    assert_close(trace["head_in"] @ head.T, logits, max_abs=0.0)


def test_separated_tokens_keep_their_margin(model: ReferenceModel) -> None:
    tokens = separated_tokens(model, 40, seed=3, margin=2e-2)
    trace: dict[str, Array] = {}
    model.forward(tokens, trace=trace)
    margins = [value.min() for name, value in trace.items() if name.endswith("router_margin")]
    assert min(margins) >= 2e-2 - SAME


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "gelu"},
        {"num_expert_group": 2},
        {"mla_use_nope": False},
        {"full_attn_layers": [4, 8]},  # layer 9 (1-based) in neither list
        {"kda_layers": [1, 2, 3, 4, 5, 6, 7]},  # layer 4 in both
    ],
)
def test_unknown_configurations_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write_checkpoint(tmp_path, "k3", 1, **change)
    with pytest.raises(ValueError, match="found"):
        ReferenceModel(tmp_path).forward([1])


# ---- second opinions -----------------------------------------------------------------------------------


def oracle_logits(name: str, checkpoint: Path, tokens: Tokens, prefill: int | None, folder: Path) -> Array:
    """Run tests/oracles/NAME_logits.py in a process of its own."""
    np.save(folder / "tokens.npy", tokens)
    script = TESTS / "oracles" / f"{name}_logits.py"
    command = [sys.executable, script, checkpoint, folder / "tokens.npy", folder / "logits.npy"]
    if prefill is not None:
        command += ["--prefill", str(prefill)]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return np.load(folder / "logits.npy").astype(np.float64)


RUNS = [(70, None), (130, None), (130, 70)]


@pytest.mark.parametrize(("count", "prefill"), RUNS)
@pytest.mark.parametrize("arch", [*ARCHS, "trained"])
def test_mlx_agrees(
    tiny_checkpoint: CheckpointFactory,
    trained_checkpoint: Path,
    arch: str,
    count: int,
    prefill: int | None,
    tmp_path: Path,
) -> None:
    """MXFP4 experts for K3 (random and trained), BF16 ones for Kimi-Linear, all arithmetic in float32."""
    pytest.importorskip("mlx_lm")
    folder = trained_checkpoint if arch == "trained" else tiny_checkpoint(arch)
    model = ReferenceModel(folder)
    tokens = separated_tokens(model, count, seed=count)
    found = oracle_logits("mlx", folder, tokens, prefill, tmp_path)
    assert_close(found, model.forward(tokens), max_abs=FLOAT32, argmax=True, what=f"mlx {arch}")


@pytest.mark.parametrize(("count", "prefill"), RUNS)
def test_transformers_agrees_on_kimi_linear(
    tiny_checkpoint: CheckpointFactory, count: int, prefill: int | None, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    folder = tiny_checkpoint("kimi-linear")
    model = ReferenceModel(folder)
    tokens = separated_tokens(model, count, seed=count)
    found = oracle_logits("transformers", folder, tokens, prefill, tmp_path)
    assert_close(found, model.forward(tokens), max_abs=FLOAT32, argmax=True, what="transformers")


@pytest.mark.parametrize(("arch", "engine"), [("k3", "mlx"), ("kimi-linear", "transformers")])
def test_small_epsilons_where_they_show(
    tiny_checkpoint: CheckpointFactory,
    arch: str,
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With small inputs of the norms, 1e-6 agrees with the other engine and 1e-5 is far off."""
    pytest.importorskip({"mlx": "mlx_lm"}.get(engine, engine))
    folder = tiny_checkpoint(arch, norm_input_scale=0.02)
    model = ReferenceModel(folder)
    tokens = separated_tokens(model, 70, seed=0)
    wanted = model.forward(tokens)
    found = oracle_logits(engine, folder, tokens, None, tmp_path)
    assert_close(found, wanted, max_abs=FLOAT32, argmax=True, what=engine)
    for module, name in ((mla, "LORA_NORM_EPS"), (functions, "L2_NORM_EPS")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 1e-5)
            assert difference(model.forward(tokens), wanted).max_abs > 100 * FLOAT32, name
