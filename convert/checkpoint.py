"""A checkpoint folder: its JSON files, its safetensors shards, and reads from them.

Every shard's header is parsed and checked before anything is read: a byte range that a header names lies in
the file, fits its tensor's shape, and neither overlaps another nor leaves a gap. Data is read by position
into buffers that the caller owns, so memory does not grow with the model.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .errors import (
    ByteCountError,
    CheckpointError,
    DtypeError,
    DuplicateNameError,
    DuplicateTensorError,
    HeaderError,
    HeaderSizeError,
    HoleError,
    IndexFileError,
    JsonError,
    MissingShardError,
    MissingTensorError,
    OverlapError,
    ShapeError,
    TruncatedShardError,
    UnknownTensorError,
)

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
PREFIX = "language_model."
# Parts of the multimodal checkpoint that the text model does not use.
SKIPPED_PARTS = ("vision_tower.", "mm_projector.")

MAX_CONFIG_BYTES = 16 << 20
MAX_INDEX_BYTES = 512 << 20
# The limit of the safetensors format.
MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 8
MAX_TENSOR_BYTES = 1 << 50
# One read call moves less than 2 GiB: larger ones fail on some systems.
MAX_READ_BYTES = 1 << 30

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class Source(NamedTuple):
    """Where one tensor's bytes lie; `shard` is -1 where the shard is absent and nothing else is known."""

    shard: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Checkpoint:
    """An opened checkpoint folder. `tensors` maps names without the `language_model.` prefix to sources."""

    def __init__(self, path: Path, *, allow_absent_shards: bool = False) -> None:
        """Parses everything but the tensor data.

        With `allow_absent_shards` the tensors of shards that are not there get an empty source, which is
        enough for planning.
        """
        if not path.is_dir():
            raise CheckpointError(f"{path}", found="no such folder", wanted="a folder with config.json")
        self.path = path
        self.config = load_json(path / "config.json", MAX_CONFIG_BYTES)
        self.tensors: dict[str, Source] = {}
        self.shards: list[Path] = []
        self.absent_shards: list[str] = []
        self.skipped = 0
        self._files: dict[int, int] = {}
        if (path / INDEX_NAME).exists():
            self._read_indexed(allow_absent_shards)
        elif (path / SINGLE_NAME).exists():
            for name, source in self._read_shard(path / SINGLE_NAME):
                self._add(name, source)
        else:
            raise CheckpointError(f"{path}", found="no weights", wanted=f"{INDEX_NAME} or {SINGLE_NAME}")

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def source(self, name: str) -> Source:
        """The source of `name`, an error where the checkpoint does not have it."""
        try:
            return self.tensors[name]
        except KeyError:
            raise MissingTensorError(name) from None

    def read_into(self, source: Source, start: int, out: memoryview) -> None:
        """Fills `out` (bytes) from byte `start` of the tensor on.

        The page cache lets go of what was read: it is not read again, and keeping terabytes costs much time.
        """
        if start < 0 or start + out.nbytes > source.nbytes:
            raise CheckpointError("read outside a tensor", found=start + out.nbytes, wanted=source.nbytes)
        descriptor = self._open(source.shard)
        done = 0
        while done < out.nbytes:
            part = out[done : done + MAX_READ_BYTES]
            count = os.preadv(descriptor, [part], source.offset + start + done)
            if count == 0:
                raise TruncatedShardError(f"{self.shards[source.shard].name} became shorter while being read")
            done += count
        advise(descriptor, source.offset + start, out.nbytes, "POSIX_FADV_DONTNEED")

    def prefetch(self, source: Source, start: int, nbytes: int) -> None:
        """Asks the system to start reading a part of a tensor from the disk."""
        advise(self._open(source.shard), source.offset + start, nbytes, "POSIX_FADV_WILLNEED")

    def _open(self, shard: int) -> int:
        if shard not in self._files:
            self._files[shard] = os.open(self.shards[shard], os.O_RDONLY)
        return self._files[shard]

    def _add(self, name: str, source: Source) -> None:
        if name.startswith(SKIPPED_PARTS):
            self.skipped += 1
            return
        short = name[len(PREFIX) :] if name.startswith(PREFIX) else name
        if short in self.tensors:
            raise DuplicateTensorError(short)
        self.tensors[short] = source

    def _read_indexed(self, allow_absent: bool) -> None:
        """Reads every shard that the index names and holds both against each other."""
        weight_map = _weight_map(self.path / INDEX_NAME)
        by_shard: dict[str, set[str]] = {}
        for name, shard in weight_map.items():
            by_shard.setdefault(shard, set()).add(name)
        for shard in sorted(by_shard):
            wanted = by_shard.pop(shard)
            if not (self.path / shard).is_file():
                if not allow_absent:
                    example = min(wanted)
                    raise MissingShardError(shard, wanted=f"{len(wanted)} tensors, such as {example}")
                self.absent_shards.append(shard)
                for name in sorted(wanted):
                    self._add(name, Source(-1, "", (), 0, 0))
                continue
            for name, source in self._read_shard(self.path / shard):
                owner = weight_map.get(name)
                if owner is None:
                    raise UnknownTensorError(f"{name} in {shard} is not in {INDEX_NAME}")
                if owner != shard:
                    raise DuplicateTensorError(name, found=shard, wanted=f"{owner}, where the index puts it")
                wanted.discard(name)
                self._add(name, source)
            if wanted:
                raise MissingTensorError(f"{min(wanted)} ({len(wanted)} in all) is not in {shard}")

    def _read_shard(self, path: Path) -> Iterable[tuple[str, Source]]:
        shard = len(self.shards)
        self.shards.append(path)
        return read_header(path, shard)


def advise(descriptor: int, offset: int, nbytes: int, advice: str) -> None:
    """Tells the system what becomes of a part of a file, where it listens to that."""
    if hasattr(os, "posix_fadvise") and nbytes > 0:
        os.posix_fadvise(descriptor, offset, nbytes, getattr(os, advice))


def load_json(path: Path, limit: int) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes; NaN, infinities and repeated names are errors."""
    try:
        if path.stat().st_size > limit:
            raise JsonError(path.name, found=f"{path.stat().st_size} bytes", wanted=f"at most {limit}")
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(path.name, found=error.strerror, wanted="a readable file") from None
    return parse_json(text, path.name)


def parse_json(text: bytes, name: str) -> dict[str, Any]:
    """`text` as one JSON object; `name` names the file in messages."""

    def refuse_constant(constant: str) -> None:
        raise JsonError(name, found=constant, wanted="a finite number")

    def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise DuplicateNameError(f"{repeated[:200]} in {name}")
        return values

    try:
        value = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_repeats)
    except (ValueError, RecursionError) as error:
        raise JsonError(name, found=str(error)[:200] or "too deep nesting") from None
    if not isinstance(value, dict):
        raise JsonError(name, found=type(value).__name__, wanted="an object")
    return value


def _weight_map(path: Path) -> dict[str, str]:
    """The index's map of tensor names to shard names, each the name of a file in the folder itself."""
    weight_map = load_json(path, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise IndexFileError(path.name, found="no weight_map", wanted="an object of names and shards")
    for shard in set(map(repr, weight_map.values())):
        if not shard.endswith(".safetensors'") or "/" in shard or "\\" in shard or "\0" in shard:
            raise IndexFileError("shard name", found=shard[:100], wanted="a .safetensors file of this folder")
    return weight_map


def read_header(path: Path, shard: int) -> list[tuple[str, Source]]:
    """Parses and checks one safetensors header; the result is in the order of the data."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise TruncatedShardError(path.name, found=f"{file_bytes} bytes", wanted="a header of 8 or more")
        (header_bytes,) = struct.unpack("<Q", start)
        if header_bytes > MAX_HEADER_BYTES:
            raise HeaderSizeError(path.name, found=header_bytes, wanted=f"at most {MAX_HEADER_BYTES}")
        if 8 + header_bytes > file_bytes:
            raise TruncatedShardError(
                path.name, found=f"{file_bytes} bytes", wanted=f"a header of {header_bytes} bytes"
            )
        header = parse_json(file.read(header_bytes), f"header of {path.name}")
    header.pop("__metadata__", None)
    base = 8 + header_bytes
    entries = [(name, _parse_entry(name, entry, path.name, shard, base)) for name, entry in header.items()]
    entries.sort(key=lambda item: (item[1].offset, item[1].nbytes))
    _check_layout(entries, path.name, base, file_bytes)
    return entries


def _parse_entry(name: str, entry: Any, where: str, shard: int, base: int) -> Source:
    """One header entry as a Source; its byte count must be that of its shape."""
    label = f"{name[:200]} in {where}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(label, found=repr(entry)[:80], wanted="dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise DtypeError(label, found=repr(dtype)[:40], wanted=", ".join(sorted(DTYPE_BYTES)))
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ShapeError(label, found=repr(shape)[:80], wanted=f"up to {MAX_DIMENSIONS} sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise HeaderError(f"data_offsets of {label}", found=repr(offsets)[:80], wanted="[begin, end]")
    nbytes = DTYPE_BYTES[dtype]
    for size in shape:
        nbytes *= size
    if nbytes > MAX_TENSOR_BYTES:
        raise ShapeError(label, found=repr(shape)[:80], wanted=f"at most {MAX_TENSOR_BYTES} bytes")
    if offsets[1] - offsets[0] != nbytes:
        raise ByteCountError(label, found=offsets[1] - offsets[0], wanted=f"{nbytes} for {dtype} {shape}")
    return Source(shard, dtype, tuple(shape), base + offsets[0], nbytes)


def _is_sizes(values: Any) -> bool:
    """Whether this is a list of integers that can be sizes."""
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TENSOR_BYTES
        for value in values
    )


def _check_layout(entries: list[tuple[str, Source]], where: str, base: int, file_bytes: int) -> None:
    """The byte ranges, sorted by offset, must cover the data exactly."""
    position = base
    for name, source in entries:
        if source.offset < position:
            raise OverlapError(f"{name} in {where}", found=source.offset - base, wanted=position - base)
        if source.offset > position:
            raise HoleError(f"before {name} in {where}", found=source.offset - base, wanted=position - base)
        position += source.nbytes
    if position > file_bytes:
        raise TruncatedShardError(where, found=f"{file_bytes} bytes", wanted=position)
    if position < file_bytes:
        raise HoleError(f"end of {where}", found=f"{file_bytes} bytes", wanted=position)
