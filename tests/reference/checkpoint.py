"""Reading a Hugging Face checkpoint folder: config.json and safetensors shards, all values as float64."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Tensors that belong to the vision part of Kimi-K3, which a text model does not use.
VISION_PREFIXES = ("vision_tower.", "mm_projector.")
K3_PREFIX = "language_model."

MXFP4_GROUP = 32
E8M0_BIAS = 127
E8M0_NAN = 255
# E2M1 by code: bit 3 is the sign, bits 0-2 the magnitude.
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class Stored:
    """Where one tensor lies: shard, dtype name of safetensors, shape, byte range from the shard's start."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_index(path: Path) -> dict[str, Stored]:
    """Names and places of all tensors of one safetensors file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = 8 + length
    return {
        name: Stored(
            path,
            entry["dtype"],
            tuple(entry["shape"]),
            data + entry["data_offsets"][0],
            data + entry["data_offsets"][1],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


def unpack_mxfp4(packed: NDArray[np.uint8], scale: NDArray[np.uint8]) -> Array:
    """packed [rows, cols/2], scale [rows, cols/32] -> [rows, cols].

    The low nibble of byte j is column 2j, the high nibble column 2j+1. A column's value is
    E2M1(code) * 2^(scale - 127) with the scale of its group of 32; scale byte 255 means NaN.
    """
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    factor = np.where(scale == E8M0_NAN, np.nan, np.exp2(scale.astype(np.float64) - E8M0_BIAS))
    return E2M1_VALUES[codes] * np.repeat(factor, MXFP4_GROUP, axis=1)


class Checkpoint:
    """config.json and the tensors of a folder, by name without K3's `language_model.` prefix.

    `unread` holds the names that nobody has asked for yet.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self._stored: dict[str, Stored] = {}
        shards = sorted(folder.glob("*.safetensors"))
        if not shards:
            raise FileNotFoundError(f"{folder}: found no *.safetensors file")
        for shard in shards:
            for name, stored in read_index(shard).items():
                if not name.startswith(VISION_PREFIXES):
                    self._stored[name.removeprefix(K3_PREFIX)] = stored
        self.unread = set(self._stored)
        self._cache: dict[str, Array] = {}

    @property
    def text_config(self) -> dict[str, Any]:
        return self.config.get("text_config", self.config)

    def tensor(self, name: str) -> Array:
        """The named tensor as float64; `NAME.weight` may also be stored as MXFP4. KeyError if missing."""
        if name not in self._cache:
            self._cache[name] = self._load(name)
        return self._cache[name]

    def under(self, prefix: str) -> Callable[[str], Array]:
        """A getter for the tensors whose names start with `prefix`."""
        return lambda name: self.tensor(prefix + name)

    def _load(self, name: str) -> Array:
        if name + "_packed" in self._stored:
            return unpack_mxfp4(self._raw(name + "_packed"), self._raw(name + "_scale"))
        raw = self._raw(name)
        if self._stored[name].dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return raw.astype(np.float64)

    def _raw(self, name: str) -> NDArray[Any]:
        stored = self._stored[name]
        dtypes = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "U8": "u1"}
        if stored.dtype not in dtypes:
            raise ValueError(f"{name}: found dtype {stored.dtype}, wanted one of {sorted(dtypes)}")
        with stored.path.open("rb") as file:
            file.seek(stored.start)
            data = file.read(stored.end - stored.start)
        self.unread.discard(name)
        return np.frombuffer(data, dtype=dtypes[stored.dtype]).reshape(stored.shape)
