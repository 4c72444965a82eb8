"""MXFP4 in both layouts: lossless repacking, dequantising, quantising.

A block is 32 values of 4-bit E2M1 codes (3 bits of magnitude, sign on top) with one E8M0 scale byte s that
stands for 2^(s-127).

- *Checkpoint layout*: codes [rows, cols/2] with value 2i in the low nibble of byte i, 2i+1 in the high one;
  scales [rows, cols/32] in a tensor of their own.
- *ggml layout* (type 39): 17 bytes a block, the scale, then 16 bytes where byte j holds value j in the low
  nibble and value j+16 in the high one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCK = 32
PACKED_BYTES = 16
BLOCK_BYTES = 17
NAN_SCALE = 255

MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES])
# Both values of a packed byte, the low nibble's first, as one 64-bit pattern.
_PAIRS = np.stack([np.tile(VALUES, 16), np.repeat(VALUES, 16)], axis=-1).reshape(-1).view(np.uint64)
# 2^(s-127) by scale byte s.
_POWERS = np.ldexp(np.float32(1), np.arange(NAN_SCALE) - 127).astype(np.float32)
# Halfway points between neighbouring magnitudes; a value on one goes to the smaller magnitude, as ggml does.
THRESHOLDS = ((MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2).astype(np.float32)

# A block as fields: 16 bytes move as one complex number, which numpy copies without looking at it.
_BLOCK_FIELDS: Any = np.dtype(
    {"names": ["scale", "codes"], "formats": ["u1", "c16"], "offsets": [0, 1], "itemsize": BLOCK_BYTES}
)
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_FOUR = np.uint64(4)


class Repacker:
    """Moves blocks from the checkpoint layout to ggml's, with scratch space that is allocated once.

    Work goes in slices of `SLICE` blocks, so that the scratch arrays stay in the processor's cache.
    """

    SLICE = 16384

    def __init__(self) -> None:
        self._even = np.empty(self.SLICE, np.uint64)
        self._odd = np.empty(self.SLICE, np.uint64)
        self._swap = np.empty(self.SLICE, np.uint64)
        self._wide_even = np.empty((self.SLICE, 8), np.uint16)
        self._wide_odd = np.empty((self.SLICE, 8), np.uint16)

    def repack(self, packed: Bytes, scales: Bytes, out: Bytes) -> None:
        """packed [n*16], scales [n], out [n*17]; all flat, contiguous and 8-byte aligned (packed)."""
        halves = packed.view(np.uint64).reshape(-1, 2)
        blocks = out.view(_BLOCK_FIELDS)
        for start in range(0, scales.size, self.SLICE):
            stop = min(start + self.SLICE, scales.size)
            codes = self._codes(halves[start:stop, 0], halves[start:stop, 1])
            blocks["scale"][start:stop] = scales[start:stop]
            blocks["codes"][start:stop] = codes.reshape(-1).view(np.complex128)

    def _codes(self, low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
        """low, high [n]: source bytes 0-7 and 8-15 of each block. Returns [n, 8] pairs of output bytes.

        Output byte 2i joins the low nibbles of source bytes i and i+8, output byte 2i+1 their high nibbles.
        """
        n = low.size
        even, odd, swap = self._even[:n], self._odd[:n], self._swap[:n]
        # `swap` marks the bits in which the high nibbles of `low` and the low nibbles of `high` differ:
        # flipping them on both sides exchanges the two.
        np.right_shift(low, _FOUR, out=swap)
        np.bitwise_xor(swap, high, out=swap)
        np.bitwise_and(swap, _LOW_NIBBLES, out=swap)
        np.bitwise_xor(high, swap, out=odd)
        np.left_shift(swap, _FOUR, out=swap)
        np.bitwise_xor(low, swap, out=even)
        pairs, upper = self._wide_even[:n], self._wide_odd[:n]
        np.copyto(pairs, even.view(np.uint8).reshape(n, 8))
        np.copyto(upper, odd.view(np.uint8).reshape(n, 8))
        np.left_shift(upper, 8, out=upper)
        np.bitwise_or(pairs, upper, out=pairs)
        return pairs


def codes_of_packed(packed: Bytes) -> Bytes:
    """Checkpoint layout [n, 16] -> one code a byte [n, 32]."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, BLOCK)


def codes_of_blocks(blocks: Bytes) -> Bytes:
    """ggml layout [n, 17] -> one code a byte [n, 32]."""
    return np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=-1)


def dequantise(packed: Bytes, scales: Bytes) -> Floats:
    """packed [n, 16] in the checkpoint layout and scales [n], none of them NaN -> values [n, 32]."""
    values: Floats = _PAIRS[packed].view(np.float32).reshape(-1, BLOCK)
    values *= _POWERS[scales][:, None]
    return values


def quantise(values: Floats) -> Bytes:
    """values [n, 32], finite -> blocks [n, 17] in ggml's layout.

    The scale is the power of two that maps the block's largest magnitude to [4, 8); magnitudes above 6
    become 6. The codes equal those of ggml's own quantiser.
    """
    n = values.shape[0]
    largest = np.abs(values).max(axis=-1)
    # frexp gives largest = m * 2^e with m in [0.5, 1), so floor(log2(largest)) = e - 1.
    exponents = np.where(largest > 0, np.frexp(largest)[1] - 3, -127).clip(-127, 127)
    scaled = np.ldexp(values, -exponents[:, None])
    magnitude = np.abs(scaled)
    codes = np.zeros(values.shape, np.uint8)
    for threshold in THRESHOLDS:
        codes += magnitude > threshold
    codes |= ((scaled < 0) & (codes > 0)).astype(np.uint8) << 3
    out = np.empty((n, BLOCK_BYTES), np.uint8)
    out[:, 0] = exponents + 127
    out[:, 1:] = codes[:, :PACKED_BYTES] | (codes[:, PACKED_BYTES:] << 4)
    return out
