"""mla: absorbed attention over a filled cache, several sequences, every cache type."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tests.compare import assert_close
from tests.ggml_k3.conftest import FAST, Array, RunOp, Weight, normal
from tests.reference.mla import causal_softmax

# Rounding of q to the cache type's dot format, and of products; against exact attention over the stored rows.
NMSE = {"F32": 1e-11, "F16": 2e-5, "BF16": 1e-4, "Q8_0": 2e-4}
CAPACITY = 700
# Heads: of every way in which a kernel holds queries; elements of the latent and the shared part.
SHAPES = [(1, 64, 32), (3, 96, 32), (8, 96, 32), (12, 64, 32), (17, 64, 32), (96, 512, 64)]
CUTS = [(9,), (1,) * 9, (2, 1, 6)]


def causal_mask(position: int, n: int) -> Array:
    visible = np.tril(np.ones((n, position + n), dtype=bool), position)
    return np.where(visible, 0.0, -np.inf).astype(np.float16)


def stored(values: Array, kind: str) -> Array:
    raw = gguf.quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType[kind])
    return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]), dtype=np.float64)


@pytest.mark.parametrize("form", ["stock", *FAST])
@pytest.mark.parametrize("kind", NMSE)
@pytest.mark.parametrize(("heads", "latent", "shared"), SHAPES)
@pytest.mark.parametrize(
    "segments", [[(0, 1)], [(0, 5)], [(40, 1)], [(600, 3)], [(0, 2), (33, 1), (600, 1)]], ids=str
)
def test_against_exact_attention(
    run_op: RunOp, form: str, kind: str, heads: int, latent: int, shared: int, segments: list[tuple[int, int]]
) -> None:
    width, tokens = latent + shared, sum(n for _, n in segments)
    q, rows = normal((heads, tokens, width), 1), normal((tokens, width), 2)
    scale = 3.0 * width**-0.5  # sharper than the model's, so that single rows matter
    parameters: list[float] = [scale, len(segments)]
    wanted, pasts, masks, caches, first = [], [], [], [], 0
    for index, (position, n) in enumerate(segments):
        past = normal((CAPACITY, width), 10 + index)
        past[position:] = np.nan if kind in ("F32", "F16", "BF16") else 0.0  # never read
        pasts.append(past)
        masks.append(causal_mask(position, n) if n > 1 else np.zeros(1, np.float32))
        parameters += [first, n, position]
        keys = np.concatenate([stored(past[:position], kind), stored(rows[first : first + n], kind)])
        caches.append(keys)
        scores = np.einsum("htd,sd->hts", q[:, first : first + n].astype(float), keys) * scale
        wanted.append(np.einsum("hts,sr->thr", causal_softmax(scores), keys[:, :latent]))
        first += n
    parts = [q[..., :latent], q[..., latent:], rows[:, :latent], rows[:, latent:]]
    found = run_op("mla", form, parameters, [*parts, Weight(np.stack(pasts), kind), *masks])
    assert_close(found[0].reshape(tokens, heads, latent), np.concatenate(wanted), nmse=NMSE[kind])
    written = found[1].reshape(len(segments), CAPACITY, width)
    for (position, n), cache, keys in zip(segments, written, caches, strict=True):
        assert_close(cache[: position + n], keys, max_abs=0.0, what="rows written")


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
@pytest.mark.parametrize("position", [0, 508])
def test_cuts_leave_every_bit(run_op: RunOp, form: str, kind: str, position: int) -> None:
    """Tokens one by one, in odd cuts and all at once; 508 + 9 crosses a span of positions."""
    heads, latent, width, tokens = 8, 96, 128, 9
    q, rows = normal((heads, tokens, width), 1), normal((tokens, width), 2)
    past = np.zeros((1, CAPACITY, width), np.float32)
    past[0, :position] = normal((position, width), 3)

    def attend(first: int, n: int) -> Array:
        past[0, position : position + first] = rows[:first]
        part, new = q[:, first : first + n], rows[first : first + n]
        parts = [part[..., :latent], part[..., latent:], new[:, :latent], new[:, latent:]]
        mask = causal_mask(position + first, n) if n > 1 else np.zeros(1, np.float32)
        parameters = [3.0 * width**-0.5, 1, 0, n, position + first]
        found = run_op("mla", form, parameters, [*parts, Weight(past, kind), mask])
        return found[0].reshape(n, heads, latent)

    results = []
    for cuts in CUTS:
        starts = np.cumsum([0, *cuts[:-1]]).tolist()
        results.append(np.concatenate([attend(first, n) for first, n in zip(starts, cuts, strict=True)]))
    assert np.isfinite(results[0]).all()
    for result in results[1:]:
        assert_close(result, results[0], max_abs=0.0)
