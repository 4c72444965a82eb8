"""GGUF files as plain data that can be broken in any way.

The `gguf` package writes only well-formed files. Here an `Image` holds keys and tensors, `encode` lays them
out as the format wants, and each field (counts, lengths, types, dimensions, offsets) may be overridden first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

FORMATS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<?",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}

# Tensor types: id -> (elements of a block, bytes of a block).
T_F32, T_F16, T_Q4_0, T_Q8_0, T_F64, T_BF16, T_MXFP4 = 0, 1, 2, 8, 28, 30, 39
BLOCKS = {
    T_F32: (1, 4),
    T_F16: (1, 2),
    T_Q4_0: (32, 18),
    T_Q8_0: (32, 34),
    T_F64: (1, 8),
    T_BF16: (1, 2),
    T_MXFP4: (32, 17),
}

Scalar: TypeAlias = "int | float | bool | str"


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes, length: int | None = None) -> bytes:
    """A string field; `length` overrides the stored length."""
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw) if length is None else length) + raw


def scalar(value_type: int, value: Scalar) -> bytes:
    if value_type == STRING:
        assert isinstance(value, str)
        return string(value)
    return struct.pack(FORMATS[value_type], value)


@dataclass
class Key:
    """One metadata entry: `payload` is everything behind the type."""

    name: bytes
    value_type: int
    payload: bytes
    name_length: int | None = None

    def encode(self) -> bytes:
        return string(self.name, self.name_length) + u32(self.value_type) + self.payload


def key(name: str, value_type: int, value: Scalar) -> Key:
    return Key(name.encode(), value_type, scalar(value_type, value))


def array(name: str, element_type: int, values: Sequence[Scalar], n: int | None = None) -> Key:
    """An array entry; `n` overrides the stored number of elements."""
    count = len(values) if n is None else n
    body = b"".join(scalar(element_type, value) for value in values)
    return Key(name.encode(), ARRAY, u32(element_type) + u64(count) + body)


@dataclass
class Tensor:
    """One tensor: dimensions in ggml's order, the contiguous one first."""

    name: bytes
    dims: list[int]
    tensor_type: int
    n_dims: int | None = None
    offset: int | None = None
    name_length: int | None = None
    type_field: int | None = None
    size: int | None = None  # bytes of data, where the dimensions do not say it

    def n_bytes(self) -> int:
        if self.size is not None:
            return self.size
        elements = 1
        for dim in self.dims:
            elements *= dim
        block, size = BLOCKS[self.tensor_type]
        return elements // block * size

    def encode(self, offset: int) -> bytes:
        n_dims = len(self.dims) if self.n_dims is None else self.n_dims
        type_field = self.tensor_type if self.type_field is None else self.type_field
        dims = b"".join(u64(dim % 2**64) for dim in self.dims)
        at = offset if self.offset is None else self.offset
        return string(self.name, self.name_length) + u32(n_dims) + dims + u32(type_field) + u64(at)


@dataclass
class Image:
    """A whole file. `encode` returns its bytes; `sections` the byte where each section starts."""

    keys: list[Key]
    tensors: list[Tensor]
    magic: bytes = b"GGUF"
    version: int = 3
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32
    sections: dict[str, int] = field(default_factory=dict)

    def find(self, name: str) -> Key:
        return next(k for k in self.keys if k.name == name.encode())

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name.encode())

    # Changes; each returns the image.

    def set(self, entry: Key) -> Image:
        """Replaces the entry of that name, or appends it."""
        names = [k.name for k in self.keys]
        if entry.name in names:
            self.keys[names.index(entry.name)] = entry
        else:
            self.keys.append(entry)
        return self

    def insert(self, entry: Key) -> Image:
        """As the second entry, whether or not there is one of that name."""
        self.keys.insert(1, entry)
        return self

    def append(self, *tensors: Tensor) -> Image:
        self.tensors.extend(tensors)
        return self

    def update(self, **fields: Any) -> Image:
        for name, value in fields.items():
            setattr(self, name, value)
        return self

    def update_tensor(self, which: str | int, **fields: Any) -> Image:
        """`which`: name or index."""
        tensor = self.tensors[which] if isinstance(which, int) else self.tensor(which)
        for name, value in fields.items():
            setattr(tensor, name, value)
        return self

    def without_key(self, name: str) -> Image:
        self.keys.remove(self.find(name))
        return self

    def without_tensor(self, *names: str) -> Image:
        for name in names:
            self.tensors.remove(self.tensor(name))
        return self

    def padding(self, n: int) -> int:
        return -n % self.alignment

    def encode(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        out = self.magic + u32(self.version) + u64(n_tensors) + u64(n_keys)
        self.sections = {"magic": 0, "version": 4, "tensor count": 8, "key count": 16, "keys": len(out)}
        out += b"".join(entry.encode() for entry in self.keys)
        self.sections["tensors"] = len(out)
        offset = 0
        for tensor in self.tensors:
            out += tensor.encode(offset)
            offset += tensor.n_bytes()
            offset += self.padding(offset)
        self.sections["padding"] = len(out)
        out += bytes(self.padding(len(out)))
        self.sections["data"] = len(out)
        for tensor in self.tensors:
            out += pattern(tensor)
            out += bytes(self.padding(tensor.n_bytes()))
        return out


def pattern(tensor: Tensor) -> bytes:
    """Data of a tensor: small finite values in every type."""
    n = tensor.n_bytes()
    block = {
        T_F32: struct.pack("<f", 0.5),
        T_F16: struct.pack("<e", 0.125),
        T_BF16: b"\x00\x3e",
        T_F64: struct.pack("<d", 0.5),
        T_Q8_0: struct.pack("<e", 0.002) + bytes(range(16, 48)),
        T_MXFP4: b"\x7b" + bytes(range(0x10, 0x20)),
        T_Q4_0: struct.pack("<e", 0.01) + bytes(16),
    }[tensor.tensor_type]
    return (block * (n // len(block) + 1))[:n]
