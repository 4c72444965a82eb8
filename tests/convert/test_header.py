"""Header bytes, read back with gguf's own reader."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as V

from convert import header


def test_read_back(tmp_path: Path) -> None:
    keys = [
        header.text("general.architecture", "k"),
        header.u16("a", 65535),
        header.u32("b", 4294967295),
        header.i32("c", -5),
        header.f32("d", 1e-5),
        header.flag("e", True),
        header.i32s("f", [1, -1]),
        header.texts("g", ["x", "", "Ġé"]),
    ]
    table = [
        header.TableEntry("one", (3, 2), Type.F32, 0),
        header.TableEntry("two", (32, 1, 2), Type.MXFP4, 32),
    ]
    data = header.encode_header(keys, table)
    assert len(data) % header.ALIGNMENT == 0
    path = tmp_path / "x.gguf"
    values = np.arange(6, dtype=np.float32)
    path.write_bytes(data + values.tobytes() + bytes(8) + bytes(64))
    reader = gguf.GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    found = {name: field.contents() for name, field in fields.items()}
    assert found == {
        "general.architecture": "k", "a": 65535, "b": 4294967295, "c": -5, "d": pytest.approx(1e-5),
        "e": True, "f": [1, -1], "g": ["x", "", "Ġé"],
    }  # fmt: skip
    assert [reader.fields[name].types[0] for name in "abcde"] == [
        V.UINT16,
        V.UINT32,
        V.INT32,
        V.FLOAT32,
        V.BOOL,
    ]
    assert [(t.name, t.shape.tolist(), t.tensor_type) for t in reader.tensors] == [
        ("one", [3, 2], Type.F32),
        ("two", [32, 1, 2], Type.MXFP4),
    ]
    np.testing.assert_array_equal(reader.tensors[0].data.reshape(-1), values)
    assert reader.tensors[1].data_offset == len(data) + 32


@pytest.mark.parametrize(("size", "wanted"), [(0, 0), (1, 32), (32, 32), (33, 64)])
def test_align(size: int, wanted: int) -> None:
    assert header.align(size) == wanted


def test_show() -> None:
    assert header.u32("a", 7).show() == "a (uint32) = 7"
    assert header.i32s("b", range(9)).show() == "b (int32[9]) = [0, 1, 2, 3, 4, 5, ...]"
    assert len(header.text("c", "x" * 500).show()) < 140
