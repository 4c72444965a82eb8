"""Comparison of a written output with its checkpoint, tensor by tensor.

The way here is not the way of the writing: the files are parsed and values dequantised with `gguf`, packed
experts are compared code by code after unpacking both sides, and transforms are written out once more in
float64. What is not copied bit for bit must agree within the rounding of its type.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from . import mxfp4
from .checkpoint import Checkpoint, Source, advise
from .errors import VerifyError
from .header import Key
from .match import expert_names
from .plan import Plan, PlannedFile, PlannedTensor
from .quant import TYPE_OF_DTYPE, Bytes, Floats, decode
from .tensors import Transform

Progress = Callable[[int], object]
Wide = npt.NDArray[np.float64]

# Values of one comparison step.
STEP_VALUES = 2 << 20
SHOWN_TENSORS = 4
# float32 arithmetic (a product, an exponential) against float64.
F32_RELATIVE = 2.0**-21


def verify_plan(plan: Plan, checkpoint: Checkpoint, progress: Progress) -> int:
    """Compares all files of the plan; returns the number of tensors. VerifyError names what differs."""
    differences: list[str] = []
    for file in plan.files:
        reader = _open(file.path)
        _check_keys(file, reader)
        offsets = _check_table(file, reader)
        descriptor = os.open(file.path, os.O_RDONLY)
        try:
            for tensor in file.tensors:
                difference = _Comparison(tensor, checkpoint, descriptor, offsets[tensor.name]).run()
                if difference is not None:
                    differences.append(f"{tensor.name} {difference}")
                progress(tensor.nbytes)
        finally:
            os.close(descriptor)
    if differences:
        shown = "; ".join(differences[:SHOWN_TENSORS])
        more = "; ..." if len(differences) > SHOWN_TENSORS else ""
        raise VerifyError(f"{len(differences)} of {len(plan.tensors)} tensors differ: {shown}{more}")
    return len(plan.tensors)


def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise VerifyError(f"{path.name} cannot be parsed ({str(error)[:100]})") from None


def _check_keys(file: PlannedFile, reader: gguf.GGUFReader) -> None:
    """Every planned key is there with its type and value, and no other is."""
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    planned = {key.name: key for key in file.keys}
    odd = sorted(fields.keys() ^ planned.keys())
    if odd:
        raise VerifyError(f"key {odd[0]} of {file.path.name}", found="it on one side only")
    for name, key in planned.items():
        if not _same_key(key, fields[name]):
            raise VerifyError(
                f"key {name} of {file.path.name}", found=_show_field(fields[name]), wanted=key.show()
            )


def _same_key(key: Key, field: Any) -> bool:
    kinds = [key.type] if key.element is None else [key.type, key.element]
    # The reader does not tell the element type of an empty array.
    if list(field.types) != kinds[: 1 if key.element is not None and len(key.value) == 0 else None]:
        return False
    found = field.contents()
    if key.type == gguf.GGUFValueType.FLOAT32:
        return bool(np.float32(key.value) == np.float32(found))
    return bool(list(found) == list(key.value)) if key.element is not None else bool(found == key.value)


def _show_field(field: Any) -> str:
    return repr(field.contents())[:60]


def _check_table(file: PlannedFile, reader: gguf.GGUFReader) -> dict[str, int]:
    """The tensor table is the planned one; returns each tensor's place in the file."""
    found = {tensor.name: tensor for tensor in reader.tensors}
    planned = {tensor.name: tensor for tensor in file.tensors}
    odd = sorted(found.keys() ^ planned.keys())
    if odd:
        raise VerifyError(f"tensor {odd[0]} of {file.path.name}", found="it on one side only")
    for name, tensor in planned.items():
        shape = tuple(int(size) for size in found[name].shape)
        kind = found[name].tensor_type
        if (shape, kind) != (tensor.ne, tensor.type):
            raise VerifyError(name, found=f"{kind.name} {shape}", wanted=f"{tensor.type.name} {tensor.ne}")
    return {name: int(tensor.data_offset) for name, tensor in found.items()}


class _Comparison:
    """One tensor of the output against its sources, in steps of whole rows."""

    def __init__(self, tensor: PlannedTensor, checkpoint: Checkpoint, descriptor: int, offset: int) -> None:
        self.tensor = tensor
        self.spec = tensor.matched.spec
        self.checkpoint = checkpoint
        self.descriptor = descriptor
        self.offset = offset
        self.cols = tensor.ne[0]
        self.rows = int(np.prod(tensor.ne[1:], dtype=np.int64))
        self.row_bytes = tensor.nbytes // self.rows

    def run(self) -> str | None:
        """None where all agree, else where the first difference is."""
        if self.spec.transform == Transform.EXPERTS:
            steps = self._expert_steps()
        elif self.spec.transform == Transform.COPY:
            steps = self._copied_steps(self.tensor.matched.sources[0], 0, self.rows)
        else:
            steps = self._computed_steps()
        return next((difference for difference in steps if difference is not None), None)

    def _expert_steps(self) -> Iterator[str | None]:
        rows = self.tensor.ne[1]
        for expert in range(self.tensor.ne[2]):
            names = expert_names(self.spec, expert, self.tensor.matched.packed)
            sources = [self.checkpoint.source(name) for name in names]
            if self.tensor.matched.packed:
                yield from self._packed_steps(sources, expert * rows, rows)
            else:
                yield from self._copied_steps(sources[0], expert * rows, rows)

    def _copied_steps(self, source: Source, first_row: int, rows: int) -> Iterator[str | None]:
        """Rows of one source, which keep their order; bytes are equal where the type is kept."""
        width = source.nbytes // rows
        for row, count in self._row_steps(rows):
            written = self._written(first_row + row, count)
            raw = self._source_bytes(source, row * width, count * width)
            if TYPE_OF_DTYPE[source.dtype] == self.tensor.type:
                equal = np.array_equal(raw, written)
                yield (
                    None
                    if equal
                    else f"bytes differ in rows {first_row + row} to {first_row + row + count - 1}"
                )
            else:
                wanted = decode(raw, source.dtype).reshape(count, self.cols)
                yield self._compare(written, wanted.astype(np.float64), first_row + row)

    def _packed_steps(self, sources: list[Source], first_row: int, rows: int) -> Iterator[str | None]:
        """Rows of one packed expert: equal codes and scales, or equal values where it was dequantised."""
        widths = [source.nbytes // rows for source in sources]
        for row, count in self._row_steps(rows):
            packed, scales = (
                self._source_bytes(source, row * width, count * width)
                for source, width in zip(sources, widths, strict=True)
            )
            written = self._written(first_row + row, count)
            codes = mxfp4.codes_of_packed(packed.reshape(-1, mxfp4.PACKED_BYTES))
            if self.tensor.type == Type.MXFP4:
                blocks = written.reshape(-1, mxfp4.BLOCK_BYTES)
                equal = np.array_equal(blocks[:, 0], scales) and np.array_equal(
                    mxfp4.codes_of_blocks(blocks), codes
                )
                yield (
                    None
                    if equal
                    else f"codes differ in rows {first_row + row} to {first_row + row + count - 1}"
                )
            else:
                powers = np.exp2(scales.astype(np.float64) - 127)
                values = mxfp4.VALUES[codes].astype(np.float64) * powers[:, None]
                yield self._compare(written, values.reshape(count, self.cols), first_row + row)

    def _computed_steps(self) -> Iterator[str | None]:
        """A tensor that is small enough to be computed at once."""
        sources = [
            decode(self._source_bytes(source, 0, source.nbytes), source.dtype).astype(np.float64)
            for source in self.tensor.matched.sources
        ]
        wanted = self._computed(sources).reshape(self.rows, self.cols)
        yield self._compare(self._written(0, self.rows), wanted, 0, F32_RELATIVE)

    def _computed(self, sources: list[Wide]) -> Wide:
        if self.spec.transform == Transform.RES_SCORE:
            return sources[0] * sources[1]
        if self.spec.transform == Transform.NEG_EXP:
            return -np.exp(sources[0][: self.rows * self.cols])
        heads = self.tensor.ne[2]
        rank = self.tensor.ne[1] if self.spec.transform == Transform.KV_B_KEY else self.tensor.ne[0]
        per_head = np.split(sources[0].reshape(-1, rank), heads)
        if self.spec.transform == Transform.KV_B_KEY:
            return np.stack([head[: self.cols].T for head in per_head])
        return np.stack([head[len(head) - self.tensor.ne[1] :] for head in per_head])

    def _row_steps(self, rows: int) -> Iterator[tuple[int, int]]:
        step = max(1, STEP_VALUES // self.cols)
        return ((row, min(step, rows - row)) for row in range(0, rows, step))

    def _written(self, row: int, count: int) -> Bytes:
        """Bytes of output rows, by position; a file that ends early gives a difference, not an error."""
        nbytes = count * self.row_bytes
        offset = self.offset + row * self.row_bytes
        data = os.pread(self.descriptor, nbytes, offset)
        advise(self.descriptor, offset, nbytes, "POSIX_FADV_DONTNEED")
        return np.frombuffer(data.ljust(nbytes, b"\xff"), np.uint8)

    def _source_bytes(self, source: Source, start: int, nbytes: int) -> Bytes:
        raw = np.empty(nbytes, np.uint8)
        self.checkpoint.read_into(source, start, raw.data)
        return raw

    def _compare(self, written: Bytes, wanted: Wide, row: int, relative: float = 0.0) -> str | None:
        """Written bytes against wanted values [rows, cols], which start at row `row` of the output."""
        view: Any = written.view(np.float32) if self.tensor.type == Type.F32 else written
        found: Floats = gguf.quants.dequantize(view.reshape(wanted.shape[0], -1), self.tensor.type)
        allowed = rounding(wanted, self.tensor.type) + relative * np.abs(wanted)
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(found - wanted) <= allowed)
        if not wrong.any():
            return None
        at = tuple(np.argwhere(wrong)[0])
        place = f"row {row + int(at[0])} column {int(at[1])}"
        return f"({place}: found {found[at]:.9g}, wanted {wanted[at]:.9g} within {allowed[at]:.3g})"


def rounding(values: Wide, qtype: Type) -> Wide:
    """The largest error that storing `values` [rows, cols] in a type may make, elementwise."""
    magnitude = np.abs(values)
    if qtype == Type.F32:
        return np.zeros_like(values)
    if qtype == Type.BF16:
        return magnitude * 2.0**-8 + 2.0**-134
    if qtype == Type.F16:
        return magnitude * 2.0**-11 + 2.0**-25
    largest = magnitude.reshape(len(values), -1, mxfp4.BLOCK).max(axis=-1)
    if qtype == Type.Q8_0:
        # Half a step of largest / 127, and the scale's own rounding to F16 times up to 127.
        allowed = largest * (0.5 / 127 + 2.0**-11) * (1 + 2.0**-10) + 127 * 2.0**-25
        return np.repeat(allowed, mxfp4.BLOCK, axis=-1)
    # MXFP4: the scale is the power of two of largest / 4; codes are 0.5, 1 or 2 scales apart, and magnitudes
    # from 6 to below 8 scales become 6.
    scale = np.exp2(np.floor(np.log2(np.maximum(largest, 2.0**-125))) - 2)
    scale = np.repeat(scale, mxfp4.BLOCK, axis=-1)
    units = magnitude / scale
    return scale * np.select([units <= 2, units <= 4, units <= 6], [0.25, 0.5, 1.0], units - 6)
