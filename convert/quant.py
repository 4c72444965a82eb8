"""Decoding of checkpoint values and encoding to GGUF types, on flat byte buffers."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from . import mxfp4
from .errors import ValueRangeError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Types whose bytes in the checkpoint and in GGUF are the same.
TYPE_OF_DTYPE = {"BF16": Type.BF16, "F16": Type.F16, "F32": Type.F32}

# Values that are encoded at a time: the intermediate arrays stay in the processor's cache.
SLICE_VALUES = 1 << 16


def row_bytes(qtype: Type, cols: int) -> int:
    """Bytes of one row of `cols` values; `cols` must be a multiple of the type's block."""
    block, nbytes = gguf.GGML_QUANT_SIZES[qtype]
    assert cols % block == 0
    return cols // block * nbytes


def decode(raw: Bytes, dtype: str) -> Floats:
    """Checkpoint bytes (BF16, F16 or F32) -> float32 values, flat."""
    if dtype == "BF16":
        wide = raw.view("<u2").astype("<u4")
        wide <<= 16
        return wide.view(np.float32)
    view: Any = raw.view("<f2" if dtype == "F16" else "<f4")
    values: Floats = view.astype(np.float32, copy=False)
    return values


def encode(values: Floats, qtype: Type, name: str) -> Bytes:
    """float32 values, flat, whole rows -> GGUF bytes.

    Raises ValueRangeError, naming the tensor `name`, for values that the type cannot hold.
    """
    if qtype == Type.F32:
        return values.view(np.uint8)
    block, nbytes = gguf.GGML_QUANT_SIZES[qtype]
    out = np.empty(values.size // block * nbytes, np.uint8)
    for start in range(0, values.size, SLICE_VALUES):
        part = values[start : start + SLICE_VALUES]
        place = start // block * nbytes
        encoded = _encode_slice(part, qtype, name)
        out[place : place + encoded.size] = encoded
    return out


def _encode_slice(values: Floats, qtype: Type, name: str) -> Bytes:
    if qtype == Type.BF16:
        return _encode_bf16(values)
    _check_range(values, qtype, name)
    if qtype == Type.MXFP4:
        return mxfp4.quantise(values.reshape(-1, mxfp4.BLOCK)).reshape(-1)
    encoded: Bytes = gguf.quants.quantize(values, qtype).view(np.uint8)
    return encoded


def _encode_bf16(values: Floats) -> Bytes:
    """Rounds to nearest, ties to even; a NaN stays one."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if is_nan.any():
        rounded[is_nan] = (bits[is_nan] >> 16) | 64
    return rounded.astype(np.uint16).view(np.uint8)


def _check_range(values: Floats, qtype: Type, name: str) -> None:
    largest = float(np.abs(values).max(initial=0.0))
    if not np.isfinite(largest):
        raise ValueRangeError(name, found=largest, wanted="finite values")
    limit = 65504.0 * (127 if qtype == Type.Q8_0 else 1)
    if qtype != Type.MXFP4 and largest > limit:
        raise ValueRangeError(f"{name} as {qtype.name.lower()}", found=largest, wanted=f"at most {limit:g}")
