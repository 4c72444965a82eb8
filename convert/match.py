"""Holds the table of expected tensors against what the checkpoint has, in both directions.

Every expected tensor must be there with its shape and a type that can be converted; every tensor that is
there must be expected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .checkpoint import Checkpoint, Source
from .config import HyperParameters
from .errors import (
    DtypeError,
    MissingTensorError,
    PackedError,
    ShapeError,
    UnknownTensorError,
    UnpairedError,
)
from .quant import TYPE_OF_DTYPE
from .tensors import Shape, SourceSpec, TensorSpec, Transform, model_tensors

PACKED, SCALE, PLAIN = ".weight_packed", ".weight_scale", ".weight"
MXFP4_GROUP = 32
# What an absent shard is taken to hold.
ASSUMED_DTYPE = "BF16"
SHOWN_NAMES = 3

_EXPERT = re.compile(r"model\.layers\.\d+\.block_sparse_moe\.experts\.\d+\.w[123]\.weight_(packed|scale)")


@dataclass(frozen=True)
class MatchedTensor:
    """A table entry with its sources found and checked.

    `dtype` is the source values' type, "MXFP4" for packed experts. `sources` is empty for experts, whose
    sources are looked up one by one.
    """

    spec: TensorSpec
    dtype: str
    sources: tuple[Source, ...]

    @property
    def packed(self) -> bool:
        return self.dtype == "MXFP4"


def match_tensors(hp: HyperParameters, checkpoint: Checkpoint) -> list[MatchedTensor]:
    """Matches the whole model. Raises a TensorError that names the first tensor that does not fit."""
    tensors = checkpoint.tensors
    _refuse_foreign_packing(tensors)
    used: set[str] = set()
    matched = []
    for spec in model_tensors(hp):
        if spec.transform == Transform.EXPERTS:
            matched.append(_match_experts(spec, tensors, used))
        else:
            matched.append(_match_plain(spec, tensors, used))
    unknown = sorted(tensors.keys() - used)
    if unknown:
        more = ", ..." if len(unknown) > SHOWN_NAMES else ""
        raise UnknownTensorError(f"{', '.join(unknown[:SHOWN_NAMES])}{more} ({len(unknown)} in all)")
    return matched


def expert_names(spec: TensorSpec, expert: int, packed: bool) -> tuple[str, ...]:
    """The names of one expert's matrix: codes and scales, or plain values."""
    stem = spec.sources[0].name.format(expert)
    return (stem + PACKED, stem + SCALE) if packed else (stem + PLAIN,)


def _refuse_foreign_packing(tensors: Mapping[str, Source]) -> None:
    for name in tensors:
        if name.endswith((PACKED, SCALE)) and not _EXPERT.fullmatch(name):
            raise PackedError(name)


def _match_plain(spec: TensorSpec, tensors: Mapping[str, Source], used: set[str]) -> MatchedTensor:
    absent = [source.name for source in spec.sources if source.name not in tensors]
    if absent and len(absent) < len(spec.sources):
        present = next(source.name for source in spec.sources if source.name in tensors)
        raise UnpairedError(present, wanted=f"{absent[0]} beside it")
    if absent:
        raise MissingTensorError(absent[0], wanted=_show(spec.sources[0].shapes[0]))
    sources = tuple(_check(source, tensors[source.name]) for source in spec.sources)
    used.update(source.name for source in spec.sources)
    return MatchedTensor(spec, sources[0].dtype or ASSUMED_DTYPE, sources)


def _check(wanted: SourceSpec, found: Source) -> Source:
    """The shape must be one of the allowed ones and the type a float that can be converted."""
    if found.shard < 0:
        return found
    if found.shape not in wanted.shapes:
        raise ShapeError(wanted.name, found=_show(found.shape), wanted=" or ".join(map(_show, wanted.shapes)))
    if found.dtype not in TYPE_OF_DTYPE:
        raise DtypeError(wanted.name, found=found.dtype, wanted=" or ".join(TYPE_OF_DTYPE))
    return found


def _match_experts(spec: TensorSpec, tensors: Mapping[str, Source], used: set[str]) -> MatchedTensor:
    """All experts of one tensor, which are either all packed or all of one plain type."""
    cols, _, n_expert = spec.ne
    packed = expert_names(spec, 0, True)[0] in tensors
    if packed and cols % MXFP4_GROUP:
        raise ShapeError(spec.sources[0].name, found=f"rows of {cols}", wanted=f"a multiple of {MXFP4_GROUP}")
    dtype = "MXFP4" if packed else ""
    for expert in range(n_expert):
        names = expert_names(spec, expert, packed)
        for name in names:
            if name not in tensors:
                other = " or packed" if not packed else ""
                raise MissingTensorError(name, wanted=f"each of {n_expert} experts{other}")
        used.update(names)
        found = _check_expert(spec, names, tensors, packed)
        if found and dtype and found != dtype:
            raise DtypeError(names[0], found=found, wanted=f"{dtype} as the other experts")
        dtype = dtype or found
    return MatchedTensor(spec, dtype or ASSUMED_DTYPE, ())


def _check_expert(
    spec: TensorSpec, names: tuple[str, ...], tensors: Mapping[str, Source], packed: bool
) -> str:
    """Checks one expert's tensors; returns the type of its values, "" where the shard is absent."""
    cols, rows, _ = spec.ne
    if not packed:
        return _check(SourceSpec(names[0], ((rows, cols),)), tensors[names[0]]).dtype
    for name, width in zip(names, (cols // 2, cols // MXFP4_GROUP), strict=True):
        source = tensors[name]
        if source.shard < 0:
            continue
        if source.shape != (rows, width):
            raise ShapeError(name, found=_show(source.shape), wanted=_show((rows, width)))
        if source.dtype != "U8":
            raise DtypeError(name, found=source.dtype, wanted="U8")
    return "MXFP4"


def _show(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
