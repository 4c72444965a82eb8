"""MXFP4 repacking, dequantising and quantising against gguf's own and against hand-written blocks."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from convert import mxfp4
from tests.reference.checkpoint import unpack_mxfp4


@pytest.mark.parametrize("blocks", [1, 2, 63, mxfp4.Repacker.SLICE, mxfp4.Repacker.SLICE + 1])
def test_repack_keeps_values(blocks: int) -> None:
    """gguf's values of the repacked blocks are the reference reader's values of the source."""
    rng = np.random.default_rng(blocks)
    packed = rng.integers(0, 256, (blocks, 16), np.uint8)
    scales = rng.integers(2, 250, (blocks, 1), np.uint8)
    out = np.full(blocks * 17 + 1, 0xEE, np.uint8)
    mxfp4.Repacker().repack(packed.reshape(-1), scales.reshape(-1), out[:-1])
    found = gguf.quants.dequantize(out[:-1].reshape(blocks, 17), Type.MXFP4)
    np.testing.assert_array_equal(found, unpack_mxfp4(packed, scales).astype(np.float32))
    assert out[-1] == 0xEE


def test_repack_layout() -> None:
    """Value i has code i % 16: the output's byte j must join values j and j + 16, so both nibbles are j."""
    packed = np.array([2 * i | (2 * i + 1) << 4 for i in range(8)] * 2, np.uint8)
    out = np.zeros(17, np.uint8)
    mxfp4.Repacker().repack(packed, np.array([99], np.uint8), out)
    assert out.tolist() == [99, *(j | j << 4 for j in range(16))]


def test_code_one_at_scale_127_is_a_half() -> None:
    values = mxfp4.dequantise(np.full((1, 16), 0x11, np.uint8), np.array([127], np.uint8))
    assert (values == 0.5).all()


def test_dequantise_all_codes_and_scales() -> None:
    """Every code at every scale but NaN, the denormal ones included."""
    scales = np.arange(255, dtype=np.uint8)
    packed = np.tile(np.arange(16, dtype=np.uint8) * 17, (255, 1))
    wanted = unpack_mxfp4(packed, scales[:, None])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(mxfp4.dequantise(packed, scales), wanted.astype(np.float32))


def test_unpacked_codes_agree() -> None:
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, (40, 16), np.uint8)
    out = np.zeros(40 * 17, np.uint8)
    mxfp4.Repacker().repack(packed.reshape(-1), np.zeros(40, np.uint8), out)
    np.testing.assert_array_equal(mxfp4.codes_of_blocks(out.reshape(40, 17)), mxfp4.codes_of_packed(packed))


def test_quantise_equals_gguf() -> None:
    """Bit for bit, over many magnitudes, with zeros, whole zero blocks and values halfway between codes."""
    rng = np.random.default_rng(6)
    values = rng.standard_normal((500, 32)) * np.exp2(rng.integers(-100, 100, (500, 1)))
    values[::7, ::3] = 0
    values[11] = 0
    halves = np.concatenate([mxfp4.THRESHOLDS, -mxfp4.THRESHOLDS, mxfp4.VALUES, [6.0, -7.9]]).astype(
        np.float32
    )
    blocks = np.concatenate([values.astype(np.float32), halves[None]])
    np.testing.assert_array_equal(mxfp4.quantise(blocks), gguf.quants.quantize(blocks, Type.MXFP4))


def test_quantise_inverts_dequantise() -> None:
    """Values that are MXFP4 with a magnitude of 4 or 6 in each block come back exactly."""
    rng = np.random.default_rng(7)
    packed = rng.integers(0, 256, (50, 16), np.uint8)
    packed[:, 0] |= 0x06
    packed[:, 0] &= 0xF7
    values = mxfp4.dequantise(packed, rng.integers(20, 230, 50, np.uint8))
    blocks = mxfp4.quantise(values)
    np.testing.assert_array_equal(gguf.quants.dequantize(blocks, Type.MXFP4), values)
