"""The plan: every tensor of the output with its type, size and place, every key, and the cut into files.

The plan is complete before a byte is written: it is what --dry-run prints, what the writer follows, and what
a stopped run is held against before it goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Type

from .checkpoint import Checkpoint
from .config import HyperParameters
from .errors import OutputError
from .header import Key, TableEntry, align, encode_header, i32, u16
from .match import MatchedTensor
from .quant import TYPE_OF_DTYPE, row_bytes
from .tensors import Role, Shape

OUT_TYPES = {"bf16": Type.BF16, "f16": Type.F16, "f32": Type.F32, "q8_0": Type.Q8_0}
EXPERT_TYPES = {"mxfp4": Type.MXFP4, "q8_0": Type.Q8_0, "bf16": Type.BF16, "f32": Type.F32}
KEEP = "keep"
# Stands in where a row does not divide into a block type's blocks.
FALLBACK = Type.BF16

# llama.cpp's numbers for general.file_type.
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
FILE_TYPE_MXFP4_MOE = 38


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the output; `note` says why its type is not the one asked for, "" where it is."""

    matched: MatchedTensor
    type: Type
    nbytes: int
    note: str

    @property
    def name(self) -> str:
        return self.matched.spec.name

    @property
    def ne(self) -> Shape:
        return self.matched.spec.ne


@dataclass(frozen=True)
class PlannedFile:
    """One output file: `offsets` are absolute, one per tensor."""

    path: Path
    keys: tuple[Key, ...]
    header: bytes
    tensors: tuple[PlannedTensor, ...]
    offsets: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Plan:
    hp: HyperParameters
    files: tuple[PlannedFile, ...]

    @property
    def tensors(self) -> list[PlannedTensor]:
        return [tensor for file in self.files for tensor in file.tensors]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def choose_types(matched: Sequence[MatchedTensor], outtype: str, experts: str) -> list[PlannedTensor]:
    """Types and sizes of all tensors under the two options."""
    return [_plan_tensor(tensor, outtype, experts) for tensor in matched]


def file_type(tensors: Sequence[PlannedTensor], outtype: str) -> int:
    """llama.cpp's number for the whole file."""
    return FILE_TYPE_MXFP4_MOE if any(t.type == Type.MXFP4 for t in tensors) else FILE_TYPES[outtype]


def lay_out(
    hp: HyperParameters,
    tensors: Sequence[PlannedTensor],
    keys: Sequence[Key],
    out: Path,
    max_bytes: int | None,
) -> Plan:
    """Cuts the tensors into files of at most `max_bytes` of tensor data; None makes one file.

    A tensor is never cut, so that a larger one gets a file of its own. The first file carries all keys, the
    others only those that describe the split, as llama.cpp expects.
    """
    groups = _split(tensors, max_bytes)
    if len(groups) == 1:
        return Plan(hp, (_lay_out_file(out, keys, groups[0]),))
    if len(groups) > 0xFFFF:
        raise OutputError("--split-max-size", found=f"{len(groups)} files", wanted="at most 65535")
    files = []
    for number, group in enumerate(groups):
        path = out.with_name(f"{out.stem}-{number + 1:05d}-of-{len(groups):05d}.gguf")
        split_keys = [
            u16("split.no", number),
            u16("split.count", len(groups)),
            i32("split.tensors.count", len(tensors)),
        ]
        files.append(_lay_out_file(path, [*(keys if number == 0 else ()), *split_keys], group))
    return Plan(hp, tuple(files))


def plan_digest(plan: Plan, checkpoint: Checkpoint) -> str:
    """A hash of everything that decides the output's bytes: the headers and the state of the source files."""
    digest = hashlib.sha256()
    for file in plan.files:
        digest.update(f"{file.path.name} {file.nbytes}\n".encode())
        digest.update(file.header)
    for shard in checkpoint.shards:
        status = shard.stat()
        digest.update(f"{shard.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _plan_tensor(matched: MatchedTensor, outtype: str, experts: str) -> PlannedTensor:
    spec = matched.spec
    if spec.role == Role.F32:
        wanted = Type.F32
    elif spec.role == Role.MATRIX:
        wanted = OUT_TYPES[outtype]
    elif experts != KEEP:
        wanted = EXPERT_TYPES[experts]
    else:
        wanted = Type.MXFP4 if matched.packed else TYPE_OF_DTYPE[matched.dtype]
    chosen, note = wanted, ""
    block = gguf.GGML_QUANT_SIZES[wanted][0]
    if spec.ne[0] % block:
        chosen = FALLBACK
        note = f"{wanted.name} needs rows of a multiple of {block}, this has {spec.ne[0]}"
    rows = 1
    for size in spec.ne[1:]:
        rows *= size
    return PlannedTensor(matched, chosen, rows * row_bytes(chosen, spec.ne[0]), note)


def _split(tensors: Sequence[PlannedTensor], max_bytes: int | None) -> list[list[PlannedTensor]]:
    groups: list[list[PlannedTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        size = align(tensor.nbytes)
        if max_bytes is not None and groups[-1] and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    return groups


def _lay_out_file(path: Path, keys: Sequence[Key], tensors: Sequence[PlannedTensor]) -> PlannedFile:
    table, position = [], 0
    for tensor in tensors:
        table.append(TableEntry(tensor.name, tensor.ne, tensor.type, position))
        position += align(tensor.nbytes)
    header = encode_header(keys, table)
    offsets = tuple(len(header) + entry.offset for entry in table)
    return PlannedFile(path, tuple(keys), header, tuple(tensors), offsets, len(header) + position)
