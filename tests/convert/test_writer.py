"""Stopping and going on, disk space, write errors: what stays behind and what a later run makes of it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from convert import sink, writer
from convert.cli import EXIT_REFUSED, EXIT_STOPPED
from convert.journal import Journal
from convert.stream import ExpertStream, RowStream
from tests.conftest import CheckpointFactory
from tests.convert.small_checkpoint import small_k3
from tests.convert.test_convert import convert, digest

ROOT = Path(__file__).resolve().parent.parent.parent
EVERY = 40
SPLIT = ("--split-max-size", "1M")

# A run that ends without any clean-up once the journal vouches for a third of the output.
CRASH = """
import json, os, sys, time
from convert import sink
from convert.cli import main
from convert.stream import ExpertStream
sink.SYNC_BYTES, sink.BUFFER_BYTES = 1, 4096
produce, note = ExpertStream.produce, sys.argv[3] + ".resume"
def crash(self, unit, out):
    time.sleep(0.01)
    if os.path.exists(note) and json.load(open(note))["nbytes"] > 800_000:
        os._exit(9)
    produce(self, unit, out)
ExpertStream.produce = crash
main(sys.argv[1:])
"""


class StoppedError(Exception):
    """Stands for a fault in the program."""


class Stopper:
    """Raises `stop` before every EVERY-th unit and notes the units that were made."""

    def __init__(self, stop: type[BaseException], patch: pytest.MonkeyPatch) -> None:
        self.stop = stop
        self.left = EVERY
        self.made: list[tuple[str, int]] = []
        for kind in (ExpertStream, RowStream):
            patch.setattr(kind, "produce", self.wrap(kind.produce))

    def wrap(self, produce: Callable[..., None]) -> Callable[..., None]:
        def produce_or_stop(stream: Any, unit: int, out: Any) -> None:
            if self.left == 0:
                self.left = EVERY
                raise self.stop
            self.left -= 1
            self.made.append((stream.tensor.name, unit))
            produce(stream, unit, out)

        return produce_or_stop


def straight_run(folder: Path, out: Path, *options: str) -> dict[str, str]:
    """Digests of the files of an undisturbed run, which are deleted again."""
    assert convert(folder, out, *options) == 0
    digests = {path.name: digest(path) for path in out.parent.glob("x*")}
    for name in digests:
        (out.parent / name).unlink()
    return digests


def outputs(out: Path) -> dict[str, str]:
    return {path.name: digest(path) for path in out.parent.glob("x*")}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, StoppedError])
@pytest.mark.parametrize("options", [(), SPLIT])
def test_resume(
    tiny_checkpoint: CheckpointFactory, stop: type[BaseException], options: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Stopped again and again, the run goes on where it was, makes no unit twice, gives the same files."""
    folder, out = tiny_checkpoint("k3"), tmp_path / "x.gguf"
    wanted = straight_run(folder, out, *options)
    stopper = Stopper(stop, monkeypatch)
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        try:
            codes.append(convert(folder, out, *options))
        except StoppedError:
            codes.append(EXIT_STOPPED)
        assert codes[-1] == 0 or not list(tmp_path.glob("x*.gguf")), "a final name before the end"
        assert len(codes) < 30
    assert len(codes) > 3 and set(codes) == {EXIT_STOPPED, 0}
    assert len(set(stopper.made)) == len(stopper.made)
    assert outputs(out) == wanted
    assert "are there already" in capsys.readouterr().out


def test_crash(tiny_checkpoint: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an end without clean-up, what the journal vouches for is not made again."""
    folder, out = tiny_checkpoint("k3"), tmp_path / "x.gguf"
    wanted = straight_run(folder, out)
    command = [sys.executable, "-c", CRASH, str(folder), "--outfile", str(out)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 9
    with (tmp_path / "x.gguf.part").open("ab") as file:
        file.write(b"written after the last journal entry")
    made: list[int] = []
    produce = ExpertStream.produce

    def count(self: Any, unit: int, out: Any) -> None:
        made.append(unit)
        produce(self, unit, out)

    monkeypatch.setattr(ExpertStream, "produce", count)
    assert convert(folder, out) == 0
    assert outputs(out) == wanted
    n_units = 8 * 3 * 8  # MoE layers x matrices x experts of the tiny checkpoint
    assert 0 < len(made) < n_units


def stopped_run(folder: Path, out: Path, patch: pytest.MonkeyPatch, *options: str) -> None:
    """A run that was stopped once; later ones are not disturbed."""
    with patch.context() as inner:
        Stopper(KeyboardInterrupt, inner)
        assert convert(folder, out, *options) == EXIT_STOPPED


@pytest.mark.parametrize("change", ["options", "source", "journal", "part"])
def test_other_plan_starts_anew(
    tiny_checkpoint: CheckpointFactory, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A part of another conversion is never taken over."""
    folder, out = tmp_path / "checkpoint", tmp_path / "x.gguf"
    shutil.copytree(tiny_checkpoint("k3"), folder)
    stopped_run(folder, out, monkeypatch)
    options: tuple[str, ...] = ()
    if change == "options":
        options = ("--experts", "bf16")
    elif change == "source":
        shard = next(folder.glob("*.safetensors"))
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    elif change == "journal":
        (tmp_path / "x.gguf.resume").write_text('{"version": 1')
    else:
        os.truncate(tmp_path / "x.gguf.part", 100)
    capsys.readouterr()
    assert convert(folder, out, *options, "--verify") == 0
    assert "are there already" not in capsys.readouterr().out
    assert outputs(out).keys() == {"x.gguf"}


@pytest.mark.parametrize("renamed", [0, 1, 2, 10])
def test_stopped_between_the_renames(
    tiny_checkpoint: CheckpointFactory, renamed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is written, `renamed` files have their names: a later run only renames the others."""
    folder = tiny_checkpoint("k3")
    wanted = straight_run(folder, tmp_path / "x.gguf", *SPLIT)
    out = tmp_path / "x.gguf"
    left = [renamed]

    def rename(source: Path, target: Path) -> None:
        if str(source).endswith(".part"):
            if left[0] == 0:
                raise StoppedError
            left[0] -= 1
        os.rename(source, target)

    def keep_note(journal: Journal) -> None:
        raise StoppedError

    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(writer.os, "replace", rename)
        patch.setattr(Journal, "remove", keep_note)
        convert(folder, out, *SPLIT)
    stopper = Stopper(StoppedError, monkeypatch)
    assert convert(folder, out, *SPLIT) == 0
    assert stopper.made == []
    assert outputs(out) == wanted
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob("*.resume"))


def test_stale_parts_are_told(
    tiny_checkpoint: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tiny_checkpoint("k3")
    stopped_run(folder, tmp_path / "x.gguf", monkeypatch, *SPLIT)
    assert convert(folder, tmp_path / "x.gguf") == 0
    assert "not used: x-00001-of-" in capsys.readouterr().out


def test_output_is_replaced_at_the_end(
    tiny_checkpoint: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older output stays whole until the new one is complete."""
    folder, out = tiny_checkpoint("k3"), tmp_path / "x.gguf"
    out.write_bytes(b"older")
    stopped_run(folder, out, monkeypatch)
    assert out.read_bytes() == b"older"
    assert convert(folder, out) == 0
    assert out.read_bytes()[:4] == b"GGUF"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_small_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Needed space is printed first, and one byte too little is refused before anything is written."""
    folder, out = small_k3().write(tmp_path / "checkpoint"), tmp_path / "x.gguf"
    needed = convert(folder, out) or out.stat().st_size
    out.unlink()
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda path: Usage(0, 0, needed - 1))
    capsys.readouterr()
    assert convert(folder, out) == EXIT_REFUSED
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith(f"needs {needed / 1000:.2f} kB in ")
    assert f"found {needed - 1} bytes free, wanted {needed}" in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda path: Usage(0, 0, needed))
    assert convert(folder, out) == 0


def test_stopped_part_counts_as_space(
    tiny_checkpoint: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tiny_checkpoint("k3"), tmp_path / "x.gguf"
    straight_run(folder, out)
    stopped_run(folder, out, monkeypatch)
    assert convert(folder, tmp_path / "y.gguf") == 0
    missing = (tmp_path / "y.gguf").stat().st_size - (tmp_path / "x.gguf.part").stat().st_size
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda path: Usage(0, 0, missing))
    assert convert(folder, out) == 0


def test_full_disk_while_writing(
    tiny_checkpoint: CheckpointFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The error is named, and after making room the run goes on."""
    folder, out = tiny_checkpoint("k3"), tmp_path / "x.gguf"
    wanted = straight_run(folder, out)
    pwrite, written = os.pwrite, [0]

    def full(descriptor: int, data: Any, offset: int) -> int:
        if offset + len(data) > 500_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written[0] += len(data)
        return pwrite(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(sink, "SYNC_BYTES", 100_000)
        patch.setattr(sink, "BUFFER_BYTES", 4096)
        patch.setattr(sink.os, "pwrite", full)
        assert convert(folder, out) == EXIT_REFUSED
    assert "error: disk too small: No space left on device" in capsys.readouterr().err
    assert convert(folder, out) == 0
    assert "are there already" in capsys.readouterr().out
    assert outputs(out) == wanted


def test_second_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_k3().write(tmp_path / "checkpoint")
    with (tmp_path / "x.gguf.part").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert convert(folder, tmp_path / "x.gguf") == EXIT_REFUSED
    assert "error: output in use: another run is writing x.gguf.part" in capsys.readouterr().err


def test_shard_cut_while_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source file that shrinks under the run is an error that names it, not a crash."""
    folder = small_k3().write(tmp_path / "checkpoint")
    produce = ExpertStream.produce

    def cut(self: Any, unit: int, out: Any) -> None:
        os.truncate(folder / "model.safetensors", 20_000)
        produce(self, unit, out)

    monkeypatch.setattr(ExpertStream, "produce", cut)
    assert convert(folder, tmp_path / "x.gguf") == EXIT_REFUSED
    assert "error: truncated shard: model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["absent/x.gguf", "folder"])
def test_bad_output_path(out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_k3().write(tmp_path / "checkpoint")
    (tmp_path / "folder").mkdir()
    assert convert(folder, tmp_path / out) == EXIT_REFUSED
    assert "error: cannot write: " in capsys.readouterr().err
