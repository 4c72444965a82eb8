"""Files of one folder: names that stay inside, links and devices refused, writes that a kill leaves whole."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_k3.errors import StateOpenError, StateWriteError
from llama_k3.server.engine import files

from llama_k3 import ArgumentError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = files.open_folder(tmp_path / "inside")
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "/etc/passwd",
        "../x",
        "a\\b",
        "a\0b",
        "a\nb",
        "\x7f",
        "\ud800",
        "é" * 128,
    ],
)
def test_names_that_are_refused(folder: int, tmp_path: Path, name: str) -> None:
    for use in (
        lambda: files.safe_name(name),
        lambda: files.open_in_folder(folder, name),
        lambda: files.write_atomic(folder, name, [b"x"]),
        lambda: files.remove(folder, name),
    ):
        with pytest.raises(ArgumentError, match="file name: found"):
            use()
    assert [path.name for path in tmp_path.rglob("*")] == ["inside"]


@pytest.mark.parametrize("name", ["a", "chat 1.bin", "-rf", "a..b", "é" * 127, "名前"])
def test_what_is_written_is_read(folder: int, tmp_path: Path, name: str) -> None:
    for content in (b"first", b"", os.urandom(100_000)):
        files.write_atomic(folder, name, [content[:10], memoryview(content[10:])])
        assert files.read_whole(folder, name) == content
    assert [path.name for path in (tmp_path / "inside").iterdir()] == [name]
    files.remove(folder, name)
    files.remove(folder, name)
    with pytest.raises(StateOpenError, match="No such file"):
        files.read_whole(folder, name)


def test_links_and_special_files_are_neither_followed_nor_replaced(folder: int, tmp_path: Path) -> None:
    outside, inside = tmp_path / "secret", tmp_path / "inside"
    outside.write_bytes(b"secret")
    (inside / "link").symlink_to(outside)
    (inside / "dangling").symlink_to(tmp_path / "new")
    (inside / "folder").mkdir()
    os.mkfifo(inside / "pipe")
    for name in ("link", "dangling", "folder", "pipe"):
        with pytest.raises(StateOpenError):
            files.read_whole(folder, name)
        with pytest.raises(StateWriteError, match="found no regular file"):
            files.write_atomic(folder, name, [b"x"])
    assert outside.read_bytes() == b"secret"
    assert not (tmp_path / "new").exists()


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(folder: int, tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(b"secret")
    (tmp_path / "inside" / files._temp_name("a")).symlink_to(outside)
    with pytest.raises(StateWriteError):
        files.write_atomic(folder, "a", [b"x"])
    assert outside.read_bytes() == b"secret"


def test_a_full_disk_leaves_the_old_file(folder: int, tmp_path: Path) -> None:
    files.write_atomic(folder, "a", [b"old"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(StateWriteError, match="a: not written"):
            files.write_atomic(folder, "a", [bytes(1 << 17)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert files.read_whole(folder, "a") == b"old"
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["a"]


def test_two_writers_of_a_name_are_kept_apart(folder: int, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"first"
        with pytest.raises(StateWriteError):
            files.write_atomic(folder, "a", [b"second"])
        files.remove_stale_temps(folder)  # a living writer's is not stale

    files.write_atomic(folder, "a", chunks())
    assert files.read_whole(folder, "a") == b"first"


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateOpenError, match="not usable as a folder"):
        files.open_folder(tmp_path / "file")


def test_a_file_that_ends_early(folder: int) -> None:
    files.write_atomic(folder, "a", [b"12345"])
    fd = files.open_in_folder(folder, "a")
    with pytest.raises(StateOpenError, match="found its end, wanted 3 bytes more"):
        files.read_into(fd, bytearray(8))
    os.close(fd)


WRITER = """
import sys
from llama_k3.server.engine import files
folder = files.open_folder(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    number += 1
    files.write_atomic(folder, "a", [number.to_bytes(8, "little") * (1 << 15) for _ in range(8)])
"""


def test_kill_at_any_point_of_a_save_leaves_a_whole_file(folder: int, tmp_path: Path) -> None:
    """Of a process that saves without end; every file it writes repeats one number."""
    draw = random.Random(0)
    files.write_atomic(folder, "a", [bytes(1 << 21)])
    for _ in range(20):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "inside")], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(draw.uniform(0.0, 0.05))
            writer.kill()
        content = files.read_whole(folder, "a")
        assert len(content) == 1 << 21 and content == content[:8] * (1 << 18)
    files.remove_stale_temps(folder)
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["a"]
