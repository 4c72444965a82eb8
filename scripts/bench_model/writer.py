"""Lays out and writes a random GGUF: tensor by tensor, in pieces, so that memory stays small for any size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from convert.config import HyperParameters
from convert.header import Key, TableEntry, align, encode_header
from convert.keys import model_keys
from convert.plan import EXPERT_TYPES, FILE_TYPE_MXFP4_MOE, FILE_TYPES, OUT_TYPES
from convert.quant import row_bytes
from convert.tensors import Role, TensorSpec, model_tensors

from .blocks import Bytes, Source
from .vocabulary import vocabulary_keys
from .weights import f32_values, matrix_rms

PIECE_VALUES = 1 << 24
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Tensor:
    spec: TensorSpec
    type: Type

    @property
    def n_values(self) -> int:
        return int(np.prod(self.spec.ne, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.n_values // self.spec.ne[0] * row_bytes(self.type, self.spec.ne[0])


@dataclass(frozen=True)
class BenchModel:
    """A model that is laid out but not written."""

    hp: HyperParameters
    keys: tuple[Key, ...]
    tensors: tuple[Tensor, ...]

    @property
    def n_params(self) -> int:
        return sum(tensor.n_values for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bytes_per_token(self) -> int:
        """Weights that one decoded token reads: of the experts those in use, of the embedding one row."""
        total = 0
        for tensor in self.tensors:
            if tensor.spec.role == Role.EXPERTS:
                total += tensor.nbytes * self.hp.n_expert_used // self.hp.n_expert
            elif tensor.spec.name == "token_embd.weight":
                total += tensor.nbytes // self.hp.n_vocab
            else:
                total += tensor.nbytes
        return total


def lay_out(hp: HyperParameters, name: str, trunk: str = "q8_0", experts: str = "mxfp4") -> BenchModel:
    """`trunk`: type of the matrices outside the experts; both are names of the converter's options."""
    types = {Role.F32: Type.F32, Role.MATRIX: OUT_TYPES[trunk], Role.EXPERTS: EXPERT_TYPES[experts]}
    tensors = tuple(Tensor(spec, _fitting(types[spec.role], spec)) for spec in model_tensors(hp))
    file_type = FILE_TYPE_MXFP4_MOE if experts == "mxfp4" else FILE_TYPES[trunk]
    keys = model_keys(hp, name, file_type) + vocabulary_keys(hp.n_vocab, hp.is_k3)
    return BenchModel(hp, tuple(keys), tensors)


def write_model(model: BenchModel, path: Path, seed: int, progress: Progress | None = None) -> None:
    """Write the file, by way of a temporary name beside it. `progress` gets the bytes of each step."""
    table, position = [], 0
    for tensor in model.tensors:
        table.append(TableEntry(tensor.spec.name, tensor.spec.ne, tensor.type, position))
        position += align(tensor.nbytes)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("wb") as out:
            out.write(encode_header(model.keys, table))
            for index, tensor in enumerate(model.tensors):
                for piece in _pieces(tensor, model.hp, Source(seed, index)):
                    out.write(piece.data)
                    if progress is not None:
                        progress(piece.size)
                out.write(bytes(align(tensor.nbytes) - tensor.nbytes))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _fitting(wanted: Type, spec: TensorSpec) -> Type:
    """The converter's rule: BF16 where a row does not divide into the type's blocks."""
    return Type.BF16 if spec.ne[0] % gguf.GGML_QUANT_SIZES[wanted][0] else wanted


def _pieces(tensor: Tensor, hp: HyperParameters, source: Source) -> Iterator[Bytes]:
    if tensor.spec.role == Role.F32:
        yield f32_values(tensor.spec, hp, source).view(np.uint8)
        return
    rms = matrix_rms(tensor.spec)
    for start in range(0, tensor.n_values, PIECE_VALUES):
        yield source.values(tensor.type, min(PIECE_VALUES, tensor.n_values - start), rms)
