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

BLOCK = 32
Q8_0_BYTES = 34


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
    if qtype not in (Type.F32, Type.BF16):
        _check_range(values, qtype, name)
    if qtype == Type.MXFP4:
        return mxfp4.quantise(values.reshape(-1, BLOCK)).reshape(-1)
    if qtype == Type.Q8_0:
        values = values.reshape(-1, BLOCK)
    encoded: Bytes = np.ascontiguousarray(gguf.quants.quantize(values, qtype)).view(np.uint8).reshape(-1)
    return encoded


def _check_range(values: Floats, qtype: Type, name: str) -> None:
    largest = float(np.abs(values).max(initial=0.0))
    if not np.isfinite(largest):
        raise ValueRangeError(name, found=largest, wanted="finite values")
    limit = 65504.0 * (127 if qtype == Type.Q8_0 else 1)
    if qtype != Type.MXFP4 and largest > limit:
        raise ValueRangeError(f"{name} as {qtype.name.lower()}", found=largest, wanted=f"at most {limit:g}")
