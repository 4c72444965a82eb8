"""kda: convolution, gates and delta rule against the recurrent reference; the state's layout; a long run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compare import assert_close
from tests.ggml_k3.conftest import Array, RunOp, normal
from tests.reference.functions import l2_norm, sigmoid
from tests.reference.kda import decay_gate, delta_rule_recurrent, short_conv

TAPS, L2_EPS = 4, 1e-6
NMSE = 1e-10


@dataclass
class Layer:
    heads: int
    dim: int
    bound: float | None
    taps: list[NDArray[np.float32]]  # of q, k, v: [channels, TAPS]
    a_log: NDArray[np.float32]
    dt_bias: NDArray[np.float32]

    @property
    def channels(self) -> int:
        return self.heads * self.dim


def make_layer(heads: int, dim: int, bound: float | None) -> Layer:
    channels = heads * dim
    taps = [normal((channels, TAPS), 10 + i, 0.5) for i in range(3)]
    return Layer(heads, dim, bound, taps, normal((heads,), 13, 0.5), normal((channels,), 14))


def reference(
    layer: Layer, rows: list[Array], z: Array, beta: Array, memory: Array, windows: list[Array]
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
    return out.reshape(len(z), -1), memory, [window for _, window in convolved]


def run_kda(
    run_op: RunOp, layer: Layer, counts: list[int], seed: int, z_scale: float = 1.0
) -> tuple[list[Array], list[Array]]:
    """Segments of the given lengths, each with a random past; (results of the op, results wanted)."""
    tokens, channels = sum(counts), layer.channels
    qkv = [normal((tokens, channels), seed + i) for i in range(3)]
    z, beta = normal((tokens, channels), seed + 3, z_scale), normal((tokens, layer.heads), seed + 4)
    a = -np.exp(layer.a_log)
    parameters = [
        layer.heads,
        layer.dim,
        TAPS,
        layer.bound is not None,
        layer.bound or 0.0,
        L2_EPS,
        len(counts),
    ]
    tensors = [*qkv, z, beta, *(taps[:, None, :] for taps in layer.taps), a, layer.dt_bias]
    wanted_out, wanted_memory, first = [], [], 0
    for index, count in enumerate(counts):
        memory = normal((layer.heads, layer.dim, layer.dim), seed + 20 + index)  # [head, key, value]
        windows = [normal((TAPS - 1, channels), seed + 40 + 3 * index + i) for i in range(3)]
        # the op keeps keys contiguous, and time contiguous in a window
        state = np.ascontiguousarray(np.swapaxes(memory, 1, 2))
        window = np.ascontiguousarray(np.stack([w.T for w in windows]))
        tensors += [state, np.full_like(state, np.nan), window, np.full_like(window, np.nan)]
        parameters += [first, count, 100]
        part = slice(first, first + count)
        out, memory, after = reference(
            layer,
            [x[part] for x in qkv],
            z[part],
            beta[part],
            memory.astype(float),
            [w.astype(float) for w in windows],
        )
        wanted_out.append(out)
        wanted_memory += [np.swapaxes(memory, 1, 2), np.stack([w.T for w in after])]
        first += count
    return run_op("kda", "stock", parameters, tensors), [np.concatenate(wanted_out), *wanted_memory]


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize(("heads", "dim"), [(1, 32), (3, 64), (2, 128)])
@pytest.mark.parametrize("counts", [[1], [2], [3], [17], [64], [1, 1, 1], [5, 1, 30]], ids=str)
def test_against_recurrence(
    run_op: RunOp, bound: float | None, heads: int, dim: int, counts: list[int]
) -> None:
    found, wanted = run_kda(run_op, make_layer(heads, dim, bound), counts, seed=100)
    for name, f, w in zip(["output", *["state", "window"] * len(counts)], found, wanted, strict=True):
        assert_close(f.reshape(w.shape), w, nmse=NMSE, what=name)


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("z_scale", [30.0, 1000.0])
def test_extreme_gates_stay_finite(run_op: RunOp, bound: float | None, z_scale: float) -> None:
    found, wanted = run_kda(run_op, make_layer(2, 32, bound), [70], seed=7, z_scale=z_scale)
    for f, w in zip(found, wanted, strict=True):
        assert_close(f, w, nmse=NMSE)


def test_long_run_does_not_drift(run_op: RunOp) -> None:
    found, wanted = run_kda(run_op, make_layer(2, 64, -5.0), [2048], seed=3)
    assert_close(found[0][-64:], wanted[0][-64:], nmse=NMSE, what="last outputs")
    assert_close(found[1], wanted[1], nmse=NMSE, what="state")
