"""Runs one op of ggml_k3 in the sanitizer build (tests/c/run_op.c) and reads its results."""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.native import run

Type = gguf.GGMLQuantizationType
Array = NDArray[Any]


class Weight:
    """A tensor of a stored type. `raw`: as stored, `values`: what it stands for, [..., rows, cols]."""

    def __init__(self, values: Array, name: str) -> None:
        self.type = Type[name]
        self.raw = gguf.quants.quantize(values.astype(np.float32), self.type)
        self.values = gguf.quants.dequantize(self.raw, self.type).astype(np.float64)


RunOp = Callable[..., list[Array]]


def encode(tensor: Array | Weight) -> bytes:
    """A tensor in the form of run_op.c; numpy's last axis is ggml's first."""
    if isinstance(tensor, Weight):
        kind, shape, data = tensor.type, tensor.values.shape, tensor.raw
    else:
        data = np.ascontiguousarray(tensor)
        kind = {"f": {2: Type.F16, 4: Type.F32}, "i": {4: Type.I32}}[data.dtype.kind][data.dtype.itemsize]
        shape = data.shape
    ne = [*reversed(shape), *[1] * (4 - len(shape))]
    return struct.pack("<i4q", int(kind), *ne) + data.tobytes()


def decode(data: bytes) -> list[Array]:
    """Results of run_op.c, dequantised, in numpy's order of axes without leading ones."""
    out, at = [], 4
    for _ in range(struct.unpack_from("<I", data)[0]):
        kind, *ne = struct.unpack_from("<i4q", data, at)
        at += 36
        shape = tuple(reversed(ne))
        if Type(kind) == Type.I32:
            size = int(np.prod(shape)) * 4
            array: Array = np.frombuffer(data, np.int32, int(np.prod(shape)), at).reshape(shape)
        else:
            block, block_bytes = gguf.GGML_QUANT_SIZES[Type(kind)]
            size = int(np.prod(shape)) // block * block_bytes
            raw = np.frombuffer(data, np.uint8, size, at)
            array = gguf.quants.dequantize(raw.reshape(*shape[:-1], -1), Type(kind)).reshape(shape)
        at += size
        while array.ndim > 2 and array.shape[0] == 1:
            array = array[0]
        out.append(array)
    return out


def cpu_variants() -> list[str]:
    """Kernel variants that this machine can run, the best last."""
    if platform.machine() in ("aarch64", "arm64"):
        return ["generic", "neon"]
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    needs = {
        "avx2": {"avx2", "fma", "f16c", "bmi2"},
        "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512_vnni", "avx512_bf16"},
    }
    return ["generic", *(name for name, wanted in needs.items() if wanted <= flags)]


FAST = [f"fast-{name}" for name in cpu_variants()]


@pytest.fixture
def run_op(sanitized: Path, tmp_path: Path) -> RunOp:
    """run_op(op, form, parameters, tensors, threads=2) -> results.

    Forms: stock, reference, and fast with a kernel variant, such as fast-avx2. Tensors: float32, float16,
    int32 arrays or Weight.
    """

    def call(
        op: str,
        form: str,
        parameters: Sequence[float],
        tensors: Sequence[Array | Weight],
        threads: int = 2,
    ) -> list[Array]:
        body = struct.pack(f"<I{len(parameters)}d", len(parameters), *parameters)
        body += struct.pack("<I", len(tensors)) + b"".join(encode(tensor) for tensor in tensors)
        (tmp_path / "in").write_bytes(body)
        kind, _, variant = form.partition("-")
        environment = {"RUN_OP_THREADS": str(threads), "GGML_K3_CPU": variant}
        run(sanitized / "run_op", op, kind, tmp_path / "in", tmp_path / "out", environment=environment)
        return decode((tmp_path / "out").read_bytes())

    return call


def normal(shape: Sequence[int], seed: int, scale: float = 1.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
