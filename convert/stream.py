"""Production of a tensor's output bytes in units: a run of rows, one expert, or a whole small tensor.

A unit is computed from the checkpoint alone, so that a stopped run can go on at any unit. All units are
bounded in size, whatever the tensor's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from . import mxfp4
from .checkpoint import Checkpoint, Source
from .errors import HeadPaddingError, ValueRangeError
from .match import expert_names
from .plan import PlannedTensor
from .quant import TYPE_OF_DTYPE, Bytes, Floats, decode, encode, row_bytes
from .tensors import Transform

# Values in a unit of rows: 16 MiB as float32.
UNIT_VALUES = 4 << 20


class TensorStream(ABC):
    """One tensor's bytes, unit by unit. Units follow each other without gaps."""

    def __init__(self, tensor: PlannedTensor, checkpoint: Checkpoint) -> None:
        self.tensor = tensor
        self.checkpoint = checkpoint

    @abstractmethod
    def unit_sizes(self) -> list[int]:
        """Output bytes of every unit."""

    @abstractmethod
    def produce(self, unit: int, out: Bytes) -> None:
        """Fills `out`, which has the unit's size."""

    @abstractmethod
    def prefetch(self, unit: int) -> None:
        """Has the system read the unit's sources ahead."""

    def _read(self, source: Source, start: int, nbytes: int) -> Bytes:
        raw = np.empty(nbytes, np.uint8)
        self.checkpoint.read_into(source, start, raw.data)
        return raw

    def _read_values(self, source: Source) -> Floats:
        return decode(self._read(source, 0, source.nbytes), source.dtype)


class RowStream(TensorStream):
    """Rows in the source's order; copied as they are where the type stays."""

    def __init__(self, tensor: PlannedTensor, checkpoint: Checkpoint) -> None:
        super().__init__(tensor, checkpoint)
        self.source = tensor.matched.sources[0]
        self.cols = tensor.ne[0]
        self.rows = int(np.prod(tensor.ne[1:], dtype=np.int64))
        self.rows_per_unit = max(1, UNIT_VALUES // self.cols)
        self.out_row_bytes = row_bytes(tensor.type, self.cols)
        self.in_row_bytes = self.source.nbytes // self.rows

    def unit_sizes(self) -> list[int]:
        starts = range(0, self.rows, self.rows_per_unit)
        return [min(self.rows_per_unit, self.rows - start) * self.out_row_bytes for start in starts]

    def produce(self, unit: int, out: Bytes) -> None:
        start = unit * self.rows_per_unit * self.in_row_bytes
        if TYPE_OF_DTYPE[self.source.dtype] == self.tensor.type:
            self.checkpoint.read_into(self.source, start, out.data)
            return
        raw = self._read(self.source, start, out.size // self.out_row_bytes * self.in_row_bytes)
        out[:] = encode(decode(raw, self.source.dtype), self.tensor.type, self.tensor.name)

    def prefetch(self, unit: int) -> None:
        step = self.rows_per_unit * self.in_row_bytes
        self.checkpoint.prefetch(self.source, unit * step, min(step, self.source.nbytes - unit * step))


class WholeStream(TensorStream):
    """A tensor that is computed at once: vectors and the halves of kv_b."""

    def unit_sizes(self) -> list[int]:
        return [self.tensor.nbytes]

    def produce(self, unit: int, out: Bytes) -> None:
        values = self._values()
        if self.tensor.type == Type.F32 and not np.isfinite(values).all():
            raise ValueRangeError(self.tensor.name, found="NaN or infinity", wanted="finite values")
        out[:] = encode(np.ascontiguousarray(values).reshape(-1), self.tensor.type, self.tensor.name)

    def prefetch(self, unit: int) -> None:
        for source in self.tensor.matched.sources:
            self.checkpoint.prefetch(source, 0, source.nbytes)

    def _values(self) -> Floats:
        spec = self.tensor.matched.spec
        values = [self._read_values(source) for source in self.tensor.matched.sources]
        if spec.transform == Transform.RES_SCORE:
            return values[0] * values[1]
        if spec.transform == Transform.NEG_EXP:
            return self._decay(values[0])
        if spec.transform == Transform.KV_B_KEY:
            nope, rank, heads = spec.ne
            return values[0].reshape(heads, -1, rank)[:, :nope].transpose(0, 2, 1)
        if spec.transform == Transform.KV_B_VALUE:
            rank, value_dim, heads = spec.ne
            return values[0].reshape(heads, -1, rank)[:, -value_dim:]
        return values[0]

    def _decay(self, a_log: Floats) -> Floats:
        """a_log [head count or more]; what lies beyond the head count is padding and must be 0."""
        heads = int(np.prod(self.tensor.ne, dtype=np.int64))
        if np.any(a_log[heads:] != 0):
            raise HeadPaddingError(
                self.tensor.matched.spec.sources[0].name,
                found=float(a_log[heads:][a_log[heads:] != 0][0]),
                wanted=f"0 from head {heads} on",
            )
        with np.errstate(over="ignore"):
            decay: npt.NDArray[np.float32] = -np.exp(a_log[:heads])
        return decay


class ExpertStream(TensorStream):
    """Stacked experts, one a unit."""

    def __init__(self, tensor: PlannedTensor, checkpoint: Checkpoint, repacker: mxfp4.Repacker) -> None:
        super().__init__(tensor, checkpoint)
        self.repacker = repacker
        self.n_expert = tensor.ne[2]

    def unit_sizes(self) -> list[int]:
        return [self.tensor.nbytes // self.n_expert] * self.n_expert

    def sources(self, expert: int) -> list[Source]:
        names = expert_names(self.tensor.matched.spec, expert, self.tensor.matched.packed)
        return [self.checkpoint.source(name) for name in names]

    def produce(self, unit: int, out: Bytes) -> None:
        sources = self.sources(unit)
        if self.tensor.matched.packed:
            packed = self._read(sources[0], 0, sources[0].nbytes)
            scales = self._read(sources[1], 0, sources[1].nbytes)
            self._from_packed(packed, scales, unit, out)
        elif TYPE_OF_DTYPE[sources[0].dtype] == self.tensor.type:
            self.checkpoint.read_into(sources[0], 0, out.data)
        else:
            out[:] = encode(self._read_values(sources[0]), self.tensor.type, self.tensor.name)

    def prefetch(self, unit: int) -> None:
        for source in self.sources(unit):
            self.checkpoint.prefetch(source, 0, source.nbytes)

    def _from_packed(self, packed: Bytes, scales: Bytes, expert: int, out: Bytes) -> None:
        if scales.max() == mxfp4.NAN_SCALE:
            name = expert_names(self.tensor.matched.spec, expert, True)[1]
            raise ValueRangeError(name, found="scale 255 (NaN)", wanted="0 to 254")
        if self.tensor.type == Type.MXFP4:
            self.repacker.repack(packed, scales, out)
        else:
            values = mxfp4.dequantise(packed.reshape(-1, mxfp4.PACKED_BYTES), scales)
            out[:] = encode(values.reshape(-1), self.tensor.type, self.tensor.name)


def open_stream(tensor: PlannedTensor, checkpoint: Checkpoint, repacker: mxfp4.Repacker) -> TensorStream:
    """The stream for a planned tensor."""
    spec = tensor.matched.spec
    if spec.transform == Transform.EXPERTS:
        return ExpertStream(tensor, checkpoint, repacker)
    if spec.transform == Transform.COPY and len(spec.ne) == 2:
        return RowStream(tensor, checkpoint)
    return WholeStream(tensor, checkpoint)
