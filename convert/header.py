"""GGUF version 3 header bytes: keys and tensor table in front of the data."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gguf import GGMLQuantizationType, GGUFValueType

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32

_SCALARS = {
    GGUFValueType.UINT16: "<H",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
}


@dataclass(frozen=True)
class Key:
    """One metadata entry. For an array, `element` is its elements' type and `value` a sequence."""

    name: str
    type: GGUFValueType
    value: Any
    element: GGUFValueType | None = None

    def show(self) -> str:
        """The entry as one line of text; long arrays by their size and first elements."""
        if self.element is None:
            text = repr(self.value)
            kind = self.type.name.lower()
        else:
            text = ", ".join(repr(item) for item in self.value[:6])
            text = f"[{text}{', ...' if len(self.value) > 6 else ''}]"
            kind = f"{self.element.name.lower()}[{len(self.value)}]"
        return f"{self.name} ({kind}) = {text if len(text) <= 110 else text[:107] + '...'}"


@dataclass(frozen=True)
class TableEntry:
    """One row of the tensor table; `offset` counts from the start of the data."""

    name: str
    ne: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int


def u16(name: str, value: int) -> Key:
    return Key(name, GGUFValueType.UINT16, value)


def u32(name: str, value: int) -> Key:
    return Key(name, GGUFValueType.UINT32, value)


def i32(name: str, value: int) -> Key:
    return Key(name, GGUFValueType.INT32, value)


def f32(name: str, value: float) -> Key:
    return Key(name, GGUFValueType.FLOAT32, value)


def flag(name: str, value: bool) -> Key:
    return Key(name, GGUFValueType.BOOL, value)


def text(name: str, value: str) -> Key:
    return Key(name, GGUFValueType.STRING, value)


def i32s(name: str, values: Sequence[int]) -> Key:
    return Key(name, GGUFValueType.ARRAY, values, GGUFValueType.INT32)


def texts(name: str, values: Sequence[str]) -> Key:
    return Key(name, GGUFValueType.ARRAY, values, GGUFValueType.STRING)


def align(size: int) -> int:
    """`size` rounded up to the data's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def encode_header(keys: Sequence[Key], table: Sequence[TableEntry]) -> bytes:
    """All bytes before the tensor data, padded to the alignment."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(table), len(keys))]
    for key in keys:
        parts += [_string(key.name), struct.pack("<I", key.type), _value(key)]
    for entry in table:
        parts.append(_string(entry.name))
        parts.append(struct.pack(f"<I{len(entry.ne)}Q", len(entry.ne), *entry.ne))
        parts.append(struct.pack("<IQ", entry.type, entry.offset))
    header = b"".join(parts)
    return header + bytes(align(len(header)) - len(header))


def _string(value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    return struct.pack("<Q", len(data)) + data


def _value(key: Key) -> bytes:
    if key.type == GGUFValueType.STRING:
        return _string(key.value)
    if key.element is None:
        return struct.pack(_SCALARS[key.type], key.value)
    head = struct.pack("<IQ", key.element, len(key.value))
    if key.element == GGUFValueType.STRING:
        return head + b"".join(map(_string, key.value))
    code = _SCALARS[key.element][1]
    return head + struct.pack(f"<{len(key.value)}{code}", *key.value)
