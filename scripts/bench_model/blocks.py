"""Random values of a wanted size, made directly in the formats of GGUF.

Quantised blocks are random bytes with scales that give the values the wanted root mean square: no value is
ever rounded, so that this runs at the speed of the random numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

Bytes = npt.NDArray[np.uint8]

BLOCK = 32
Q8_0_BYTES = 2 + BLOCK
MXFP4_BYTES = 1 + BLOCK // 2
# Root mean squares of a uniform int8 in -127 .. 127 and of E2M1's 16 values.
INT8_RMS = float(np.sqrt(np.mean(np.arange(-127.0, 128.0) ** 2)))
E2M1_RMS = float(np.sqrt(np.mean(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) ** 2)))
# Q8_0 scales lie within this factor of the middle.
SCALE_SPREAD = 0.5
NORMAL_DRAWS = 1 << 16


class Source:
    """A stream of random bytes, numbers and blocks; equal seeds give equal streams."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.SFC64(seed)
        self.numbers = np.random.Generator(self._bits)

    def bytes(self, count: int) -> Bytes:
        raw: npt.NDArray[np.uint64] = self._bits.random_raw(-(-count // 8))
        return raw.view(np.uint8)[:count]

    def values(self, qtype: Type, count: int, rms: float) -> Bytes:
        """`count` values (whole blocks) around zero as bytes of `qtype`."""
        make = {Type.F32: self._f32, Type.BF16: self._bf16, Type.Q8_0: self._q8_0, Type.MXFP4: self._mxfp4}
        return make[qtype](count, rms)

    def _f32(self, count: int, rms: float) -> Bytes:
        normal = self.numbers.standard_normal(count, np.float32)
        normal *= np.float32(rms)
        return normal.view(np.uint8)

    def _bf16(self, count: int, rms: float) -> Bytes:
        """Drawn from a table of normal numbers by 16 random bits each."""
        table = self.numbers.standard_normal(NORMAL_DRAWS, np.float32) * np.float32(rms)
        upper = (table.view(np.uint32) >> 16).astype(np.uint16)
        picks = self.bytes(2 * count).view(np.uint16)
        return upper[picks].view(np.uint8)

    def _q8_0(self, count: int, rms: float) -> Bytes:
        """Blocks of an F16 scale and 32 int8; -128, which no quantiser writes, becomes -127."""
        n_blocks = count // BLOCK
        blocks = np.empty((n_blocks, Q8_0_BYTES), np.uint8)
        middle = rms / INT8_RMS / np.sqrt(1 + SCALE_SPREAD**2 / 3)
        scales = self.numbers.uniform(1 - SCALE_SPREAD, 1 + SCALE_SPREAD, n_blocks) * middle
        blocks[:, :2] = scales.astype("<f2").view(np.uint8).reshape(n_blocks, 2)
        codes = self.bytes(count).view(np.int8).reshape(n_blocks, BLOCK)
        blocks[:, 2:] = np.maximum(codes, -127).view(np.uint8)
        return blocks.reshape(-1)

    def _mxfp4(self, count: int, rms: float) -> Bytes:
        """Blocks of an E8M0 scale and 32 E2M1 codes; the scale is one of two neighbouring powers of two."""
        n_blocks = count // BLOCK
        blocks = np.empty((n_blocks, MXFP4_BYTES), np.uint8)
        lower = int(np.floor(np.log2(rms / E2M1_RMS)))
        share_of_upper = ((rms / E2M1_RMS / 2.0**lower) ** 2 - 1) / 3
        is_upper = self.numbers.random(n_blocks) < share_of_upper
        blocks[:, 0] = 127 + lower + is_upper
        blocks[:, 1:] = self.bytes(n_blocks * (BLOCK // 2)).reshape(n_blocks, -1)
        return blocks.reshape(-1)
