"""The writing of one file: content for any sizes and starts, what is reported as safe, errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert import sink
from convert.errors import OutputError
from convert.sink import SECTOR, Sink


def put(target: Sink, data: bytes) -> None:
    target.take(len(data))[:] = np.frombuffer(data, np.uint8)
    target.commit(len(data))


def chunks(rng: np.random.Generator, largest: int) -> list[bytes]:
    return [rng.bytes(int(size)) for size in rng.integers(1, largest, 60)]


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every few units fill a buffer, and every write is reported."""
    monkeypatch.setattr(sink, "BUFFER_BYTES", 3 * SECTOR)
    monkeypatch.setattr(sink, "SYNC_BYTES", 1)


@pytest.mark.parametrize("largest", [50, SECTOR, 5 * SECTOR])
@pytest.mark.parametrize("start", [0, 1, SECTOR - 1, SECTOR, 2 * SECTOR + 32])
def test_content(largest: int, start: int, tmp_path: Path) -> None:
    """The file is what was kept and all that was put; what lay behind the start is gone."""
    rng = np.random.default_rng(start + largest)
    path = tmp_path / "x"
    old = rng.bytes(start + 999)
    path.write_bytes(old)
    data = chunks(rng, largest)
    progress: list[int] = []
    saved: list[int] = []
    with Sink(path, start, largest, progress.append, saved.append) as target:
        for part in data:
            put(target, part)
    whole = old[:start] + b"".join(data)
    assert path.read_bytes() == whole
    assert sum(progress) == len(whole) - start
    ends = {start, *(start + int(end) for end in np.cumsum([len(part) for part in data]))}
    assert set(saved) <= ends and saved == sorted(saved) and saved[-1] == len(whole)


def test_room_that_is_not_committed_is_not_written(tmp_path: Path) -> None:
    saved: list[int] = []
    with (
        pytest.raises(KeyboardInterrupt),
        Sink(tmp_path / "x", 0, 500, lambda count: None, saved.append) as target,
    ):
        put(target, b"kept")
        target.take(400)[:] = 1
        raise KeyboardInterrupt
    assert (tmp_path / "x").read_bytes() == b"kept" and saved[-1] == 4


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writes on this system")
def test_direct_writes_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without them gets ordinary writes."""
    pwrite = os.pwrite
    refused: list[int] = []

    def refuse_once(descriptor: int, data: Any, offset: int) -> int:
        if not refused:
            refused.append(offset)
            raise OSError(errno.EINVAL, "direct")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(sink.os, "pwrite", refuse_once)
    data = chunks(np.random.default_rng(4), 2 * SECTOR)
    with Sink(tmp_path / "x", 0, 2 * SECTOR, lambda count: None, lambda position: None) as target:
        for part in data:
            put(target, part)
    assert refused and (tmp_path / "x").read_bytes() == b"".join(data)


@pytest.mark.parametrize("broken", ["pwrite", "sync"])
def test_write_error(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes out in the filling thread, and nothing after it is reported as safe."""

    def fail(*unused: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(*((sink.os, "pwrite", fail) if broken == "pwrite" else (sink, "_sync_data", fail)))
    saved: list[int] = []
    with (
        pytest.raises(OutputError, match="Input/output error"),
        Sink(tmp_path / "x", 0, SECTOR, lambda count: None, saved.append) as target,
    ):
        for part in chunks(np.random.default_rng(4), SECTOR):
            put(target, part)
    assert saved == []
