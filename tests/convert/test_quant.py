"""Decoding and encoding of plain values."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from convert.errors import ValueRangeError
from convert.quant import SLICE_VALUES, decode, encode


def test_decode_bf16_all_patterns() -> None:
    raw = np.arange(1 << 16, dtype="<u2")
    wanted = (raw.astype("<u4") << 16).view(np.float32)
    np.testing.assert_array_equal(decode(raw.view(np.uint8), "BF16"), wanted)


def test_decode_f16_and_f32() -> None:
    values = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    np.testing.assert_array_equal(decode(values.view(np.uint8), "F32"), values)
    halves = values.astype(np.float16)
    np.testing.assert_array_equal(decode(halves.view(np.uint8), "F16"), halves.astype(np.float32))


def test_encode_bf16_keeps_bf16() -> None:
    """Every finite BF16 value goes through float32 and back unchanged."""
    bits = np.arange(1 << 16, dtype="<u2")
    bits = bits[(bits & 0x7F80) != 0x7F80]
    np.testing.assert_array_equal(
        encode(decode(bits.view(np.uint8), "BF16"), Type.BF16, "x"), bits.view(np.uint8)
    )


def test_encode_bf16_rounds_to_even() -> None:
    values = np.array([0x3F808000, 0x3F818000, 0x3F808001], "<u4").view(np.float32)
    assert encode(values, Type.BF16, "x").view("<u2").tolist() == [0x3F80, 0x3F82, 0x3F81]


@pytest.mark.parametrize("value", [70000.0, np.inf, np.nan])
def test_f16_range(value: float) -> None:
    with pytest.raises(ValueRangeError, match=r"blk\.0\.x"):
        encode(np.array([1.0, value], np.float32), Type.F16, "blk.0.x")


@pytest.mark.parametrize("qtype", [Type.Q8_0, Type.MXFP4])
def test_block_types_refuse_nan(qtype: Type) -> None:
    values = np.zeros(32, np.float32)
    values[5] = np.nan
    with pytest.raises(ValueRangeError):
        encode(values, qtype, "x")


def test_q8_0_scale_range() -> None:
    encode(np.full(32, 65504.0 * 127, np.float32), Type.Q8_0, "x")
    with pytest.raises(ValueRangeError):
        encode(np.full(32, 65504.0 * 128, np.float32), Type.Q8_0, "x")


@pytest.mark.parametrize("qtype", [Type.BF16, Type.F16, Type.Q8_0, Type.MXFP4])
def test_encode_equals_gguf(qtype: Type) -> None:
    """Bit for bit, over more values than one slice holds."""
    rng = np.random.default_rng(9)
    values = rng.standard_normal(SLICE_VALUES * 2 + 320).astype(np.float32)
    wanted = gguf.quants.quantize(values, qtype)
    np.testing.assert_array_equal(encode(values, qtype, "x"), wanted.view(np.uint8))


def test_encode_bf16_odd_patterns() -> None:
    """NaN of every kind stays NaN, infinities stay, the largest values become infinite, as gguf has it."""
    bits = np.random.default_rng(10).integers(0, 1 << 32, 100_000, np.uint32)
    special = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF, 0x00000001], np.uint32)
    values = np.concatenate([bits, special]).view(np.float32)
    found = encode(values, Type.BF16, "x").view(np.uint16)
    np.testing.assert_array_equal(found, gguf.quants.quantize(values, Type.BF16).view(np.uint16))
