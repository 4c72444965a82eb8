"""kda: convolution, gates, delta rule, head norm against the recurrent reference; layouts; a long run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, Array, RunOp, normal
from tests.reference.functions import l2_norm, sigmoid
from tests.reference.kda import decay_gate, delta_rule_recurrent, short_conv

TAPS, L2_EPS, NORM_EPS = 4, 1e-6, 1e-5
NMSE = 1e-10
FORMS = pytest.mark.parametrize("form", ["stock", *FAST])


@dataclass
class Layer:
    heads: int
    dim: int
    bound: float | None
    taps: list[NDArray[np.float32]]  # of q, k, v: [channels, TAPS]
    a_log: NDArray[np.float32]
    dt_bias: NDArray[np.float32]
    norm: NDArray[np.float32]

    @property
    def channels(self) -> int:
        return self.heads * self.dim


def make_layer(heads: int, dim: int, bound: float | None) -> Layer:
    channels = heads * dim
    taps = [normal((channels, TAPS), 10 + i, 0.5) for i in range(3)]
    return Layer(
        heads, dim, bound, taps, normal((heads,), 13, 0.5), normal((channels,), 14), normal((dim,), 15)
    )


def reference(
    layer: Layer, rows: list[Array], z: Array, beta: Array, gate: Array, memory: Array, windows: list[Array]
) -> tuple[Array, Array, list[Array]]:
    """(o [T, channels], memory, windows) of one sequence in float64."""
    shape = (len(z), layer.heads, layer.dim)
    convolved = [
        short_conv(x.astype(float), w, taps.astype(float))
        for x, w, taps in zip(rows, windows, layer.taps, strict=True)
    ]
    q, k, v = (y.reshape(shape) for y, _ in convolved)
    g = decay_gate((z + layer.dt_bias).astype(float).reshape(shape), layer.a_log.astype(float), layer.bound)
    out, memory = delta_rule_recurrent(
        l2_norm(q) * layer.dim**-0.5, l2_norm(k), v, g, sigmoid(beta.astype(float)), memory
    )
    out = out / np.sqrt(np.mean(out**2, axis=-1, keepdims=True) + NORM_EPS) * layer.norm
    gated = out.reshape(len(z), -1) * sigmoid(gate.astype(float))
    return gated, memory, [window for _, window in convolved]


def run_kda(
    run_op: RunOp, form: str, layer: Layer, counts: list[int], seed: int, z_scale: float = 1.0
) -> tuple[list[Array], list[Array]]:
    """Segments of the given lengths, each with a random past; (results of the op, results wanted)."""
    tokens, channels = sum(counts), layer.channels
    qkv = [normal((tokens, channels), seed + i) for i in range(3)]
    z, beta = normal((tokens, channels), seed + 3, z_scale), normal((tokens, layer.heads), seed + 4)
    gate = normal((tokens, channels), seed + 5)
    a = -np.exp(layer.a_log)
    parameters = [
        layer.heads,
        layer.dim,
        TAPS,
        layer.bound is not None,
        layer.bound or 0.0,
        L2_EPS,
        NORM_EPS,
        len(counts),
    ]
    tensors = [*qkv, z, beta, gate, *(taps[:, None, :] for taps in layer.taps), a, layer.dt_bias, layer.norm]
    # a place to read and a place to write for each segment
    states = np.full((2 * len(counts), layer.heads, layer.dim, layer.dim), np.nan, np.float32)
    places = np.full((2 * len(counts), 3, channels, TAPS - 1), np.nan, np.float32)
    wanted_out, wanted_states, wanted_places, first = [], states.astype(float), places.astype(float), 0
    for index, count in enumerate(counts):
        memory = normal((layer.heads, layer.dim, layer.dim), seed + 20 + index)  # [head, key, value]
        windows = [normal((TAPS - 1, channels), seed + 40 + 3 * index + i) for i in range(3)]
        # the op keeps keys contiguous, and time contiguous in a window
        states[2 * index] = np.swapaxes(memory, 1, 2)
        places[2 * index] = np.stack([w.T for w in windows])
        parameters += [first, count, 100]
        part = slice(first, first + count)
        out, memory, after = reference(
            layer,
            [x[part] for x in qkv],
            z[part],
            beta[part],
            gate[part],
            memory.astype(float),
            [w.astype(float) for w in windows],
        )
        wanted_out.append(out)
        wanted_states[2 * index], wanted_places[2 * index] = states[2 * index], places[2 * index]
        wanted_states[2 * index + 1] = np.swapaxes(memory, 1, 2)
        wanted_places[2 * index + 1] = np.stack([w.T for w in after])
        first += count
    tensors += [states, places.reshape(-1, channels, TAPS - 1)]
    found = run_op("kda", form, parameters, tensors)
    return found, [np.concatenate(wanted_out), wanted_states, wanted_places]


@FORMS
@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize(("heads", "dim"), [(1, 32), (3, 64), (2, 128)])
@pytest.mark.parametrize("counts", [[1], [2], [3], [17], [64], [1, 1, 1], [5, 1, 30]], ids=str)
def test_against_recurrence(
    run_op: RunOp, form: str, bound: float | None, heads: int, dim: int, counts: list[int]
) -> None:
    found, wanted = run_kda(run_op, form, make_layer(heads, dim, bound), counts, seed=100)
    for name, f, w in zip(["output", "states", "windows"], found, wanted, strict=True):
        assert_close(f.reshape(w.shape), w, nmse=NMSE, what=name)


@FORMS
@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("z_scale", [30.0, 1000.0])
def test_extreme_gates_stay_finite(run_op: RunOp, form: str, bound: float | None, z_scale: float) -> None:
    found, wanted = run_kda(run_op, form, make_layer(2, 32, bound), [70], seed=7, z_scale=z_scale)
    for f, w in zip(found, wanted, strict=True):
        assert_close(f.reshape(w.shape), w, nmse=NMSE)


@FORMS
def test_long_run_does_not_drift(run_op: RunOp, form: str) -> None:
    found, wanted = run_kda(run_op, form, make_layer(2, 64, -5.0), [2048], seed=3)
    assert_close(found[0][-64:], wanted[0][-64:], nmse=NMSE, what="last outputs")
    assert_close(found[1].reshape(wanted[1].shape), wanted[1], nmse=NMSE, what="state")
