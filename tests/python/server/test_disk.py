"""The cache's files: they survive a restart, and whatever happens to one of them is a miss at worst."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_k3.server.engine.disk import SUFFIX, DiskTier, Identity

from llama_k3 import Model
from tests.python.server.cache_harness import OTHER, TEXT, Harness

PROMPTS = [[number, *TEXT[:19]] for number in range(6)]


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> Iterator[Model]:
    with Model(tiny_gguf, n_threads=1) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def fill(model: Model, folder: Path, prompts: list[list[int]], **options: Any) -> None:
    """A server reads the prompts and ends; its files stay."""
    with Harness(model, n_slots=1, folder=folder, **options) as harness:
        for prompt in prompts:
            harness.run(prompt)


def disk_of(harness: Harness) -> DiskTier:
    disk = harness.cache._store._disk
    assert disk is not None
    return disk


def test_a_chat_goes_on_after_a_restart(model: Model, folder: Path) -> None:
    fill(model, folder, [TEXT[:60], OTHER[:40]])
    assert len(names(folder)) == 2
    with Harness(model, n_slots=1, folder=folder) as harness:
        assert harness.cache.stats().entries == 2
        assert harness.cache.stats().disk_bytes == sum(path.stat().st_size for path in folder.iterdir())
        for prompt in (TEXT[:60], OTHER[:40]):
            placement = harness.run(prompt)
            assert placement.n_cached == len(prompt) - 1 and "from disk" in placement.reason
        assert harness.run(TEXT[:60]).reason.endswith("of 60 common tokens")
        assert (harness.cache.stats().hits, harness.cache.stats().misses) == (3, 0)


def test_snapshots_come_back_with_their_sequence(model: Model, folder: Path) -> None:
    with Harness(model, n_slots=1, folder=folder) as harness:
        harness.run(TEXT[:100], [20, 40, 90])
    with Harness(model, n_slots=1, folder=folder) as harness:
        assert harness.run([*TEXT[:45], *OTHER[:9]]).n_cached == 40
        assert harness.run([*TEXT[:30], *OTHER[:9]]).n_cached == 20


def test_what_has_to_leave_memory_is_found_on_disk(model: Model, folder: Path) -> None:
    """Memory for about two sequences of five."""
    with Harness(model, n_slots=1, folder=folder, cache_ram=600_000) as harness:
        for prompt in PROMPTS:
            assert harness.run(prompt).n_cached == 0
            disk_of(harness).collect(wait=True)
            assert harness.cache.stats().ram_bytes <= 600_000
        for prompt in PROMPTS:
            assert harness.run(prompt).n_cached == 19
            disk_of(harness).collect(wait=True)
            assert harness.cache.stats().ram_bytes <= 600_000
        assert harness.cache.stats().entries >= 5


def test_nothing_is_written_while_memory_is_plenty(model: Model, folder: Path) -> None:
    with Harness(model, n_slots=1, folder=folder) as harness:
        for prompt in PROMPTS:
            harness.run(prompt)
        assert names(folder) == set()


@pytest.mark.parametrize("place", [0, 9, 30, 100, -1, -100_000, None])
def test_a_file_damaged_before_the_start(model: Model, folder: Path, place: int | None) -> None:
    """One byte, or the end missing. In the header it is seen at the start, in the block when it is read."""
    fill(model, folder, [TEXT[:60]])
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    if place is None:
        del data[-1]
    else:
        data[place] ^= 4
    path.write_bytes(data)
    with Harness(model, n_slots=1, folder=folder) as harness:
        assert harness.run(TEXT[:60]).n_cached == 0
        assert harness.cache.stats().disk_bytes == 0
        harness.run(OTHER[:30])
        assert harness.run(TEXT[:60]).n_cached == 59
    with Harness(model, n_slots=1, folder=folder) as harness:
        assert harness.run(TEXT[:60]).n_cached == 59


@pytest.mark.parametrize("what", ["removed", "truncated", "damaged", "another", "a link", "a folder"])
def test_a_file_that_changes_behind_the_index(model: Model, folder: Path, tmp_path: Path, what: str) -> None:
    fill(model, folder, [TEXT[:60]])
    fill(model, tmp_path / "other", [OTHER[:60]])
    (path,) = folder.iterdir()
    data = path.read_bytes()
    with Harness(model, n_slots=1, folder=folder) as harness:
        path.unlink()
        if what == "truncated":
            path.write_bytes(data[: len(data) // 2])
        elif what == "damaged":
            path.write_bytes(data[:-500] + bytes(500))
        elif what == "another":
            next((tmp_path / "other").iterdir()).rename(path)
        elif what == "a link":
            (tmp_path / "target").write_bytes(data)
            path.symlink_to(tmp_path / "target")
        elif what == "a folder":
            path.mkdir()
        assert harness.run(TEXT[:60]).n_cached == 0
        assert harness.run(TEXT[:60]).n_cached == 59
        assert harness.cache.stats().ram_bytes <= 4 * harness.checkpoint_bytes
    assert what != "a link" or (tmp_path / "target").read_bytes() == data


def test_files_of_others_are_left_alone(model: Model, folder: Path, tmp_path: Path) -> None:
    fill(model, folder, [TEXT[:60]])
    (path,) = folder.iterdir()
    (folder / "notes.txt").write_text("not ours")
    (folder / f"saved{SUFFIX}").write_text("not our name")
    (folder / path.name.replace("bf16", "f16")).symlink_to(path)
    (folder / ".profile").write_text("hidden")
    before = names(folder)
    with Harness(model, n_slots=1, folder=folder) as harness:
        assert harness.cache.stats().entries == 1
        assert harness.run(TEXT[:60]).n_cached == 59
    assert before <= names(folder)


def test_files_of_another_model_or_type_are_no_hits_but_count(model: Model, folder: Path) -> None:
    fill(model, folder, [TEXT[:60]])
    (path,) = folder.iterdir()
    size = path.stat().st_size
    digest = model.info.digest
    for identity, n_ctx, found in (
        (Identity(digest, "bf16"), 256, 1),
        (Identity(digest ^ 1, "bf16"), 256, 0),
        (Identity(digest, "f16"), 256, 0),
        (Identity(digest, "bf16"), 50, 0),
    ):
        tier = DiskTier(folder, 1 << 30, identity, n_ctx)
        assert (len(tier.entries), tier.size) == (found, size)
        tier.close()
    DiskTier(folder, size - 1, Identity(digest ^ 1, "bf16"), 256).close()
    assert names(folder) == set()


def test_the_least_recently_used_file_goes_first(model: Model, folder: Path) -> None:
    """Over restarts: reading one makes it the newest."""
    fill(model, folder, PROMPTS[:3])
    size = max(path.stat().st_size for path in folder.iterdir())
    for number, path in enumerate(sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(path, ns=(number, number))
    with Harness(model, n_slots=1, folder=folder, cache_ram=0) as harness:
        assert harness.cache.stats().entries == 3  # without memory none can be read
        assert harness.run(PROMPTS[0]).n_cached == 0
    with Harness(model, n_slots=1, folder=folder) as harness:
        assert "from disk" in harness.place(PROMPTS[0]).reason
    with Harness(model, n_slots=1, folder=folder, disk_size=2 * size) as harness:
        assert harness.cache.stats().entries == 2
        assert harness.run(PROMPTS[0]).n_cached == 19
        assert harness.run(PROMPTS[2]).n_cached == 19
        assert harness.run(PROMPTS[1]).n_cached == 0
        assert harness.cache.stats().disk_bytes <= 2 * size


def test_a_sequence_over_the_limit_is_not_written(model: Model, folder: Path) -> None:
    fill(model, folder, [TEXT[:60]], disk_size=1000)
    assert names(folder) == set()


def test_a_full_disk_costs_the_file_only(
    model: Model, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Harness(model, n_slots=1, folder=folder) as harness:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            harness.run(TEXT[:60])
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
            harness.cache.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
    assert names(folder) == set()
    assert "not written" in caplog.text


def test_two_servers_share_a_folder(model: Model, folder: Path) -> None:
    with (
        Harness(model, n_slots=1, folder=folder, cache_ram=600_000) as one,
        Harness(model, n_slots=1, folder=folder, cache_ram=600_000) as two,
    ):
        for prompt in PROMPTS:
            for harness in (one, two):
                harness.run(prompt)
                disk_of(harness).collect(wait=True)
        for prompt in reversed(PROMPTS):
            assert one.run(prompt).n_cached == two.run(prompt).n_cached == 19


def test_a_request_that_leaves_while_its_file_is_read(model: Model, folder: Path) -> None:
    fill(model, folder, [TEXT[:60]])
    with Harness(model, n_slots=1, folder=folder) as harness:
        harness.run(OTHER[:30])
        before = harness.cache.stats().ram_bytes, harness.context.tokens(0)
        placement = harness.cache.place(TEXT[:60], [], [0], [])
        assert placement.pending is not None and placement.n_cached == 59
        assert harness.cache.stats().ram_bytes > before[0] + harness.checkpoint_bytes
        placement.pending.exception()
        harness.cache.abandon(placement)
        assert (harness.cache.stats().ram_bytes, harness.context.tokens(0)) == before
        assert harness.run(OTHER[:30]).n_cached == 29
        assert harness.run(TEXT[:60]).n_cached == 59


def test_a_slot_that_waits_can_be_copied_from(model: Model, folder: Path) -> None:
    fill(model, folder, [TEXT[:60]])
    with Harness(model, n_slots=2, folder=folder) as harness:
        harness.run(OTHER[:30], wanted_slot=0)
        waiting = harness.cache.place(TEXT[:60], [], [0], [], wanted_slot=0)
        assert waiting.pending is not None
        fork = harness.cache.place([*OTHER[:30], 1, 2], [], [1], [0])
        assert (fork.slot, fork.n_cached) == (1, 29)
        waiting.pending.exception()
        assert harness.cache.finish(waiting).n_cached == 59
        assert harness.context.tokens(0) == TEXT[:59]
        assert harness.context.tokens(1) == OTHER[:29]


def test_what_is_dropped_while_it_is_written(model: Model, folder: Path) -> None:
    """The writer is held up; memory counts what it holds until it is done with it."""
    with Harness(model, n_slots=1, folder=folder, cache_ram=600_000) as harness:
        go_on = threading.Event()
        disk_of(harness)._writer.submit(go_on.wait)
        harness.run(PROMPTS[0])
        harness.run(PROMPTS[1])
        writing = disk_of(harness).writing
        assert writing is not None and writing.tokens[0] == 0
        harness.cache._store.drop(lambda tokens: tokens[0] == 0)
        assert harness.cache.stats().ram_bytes >= writing.size
        go_on.set()
        disk_of(harness).collect(wait=True)
        assert harness.run(PROMPTS[0]).n_cached == 0
        disk_of(harness).collect(wait=True)
        assert harness.run(PROMPTS[1]).n_cached == 19


def test_what_is_dropped_from_the_cache_is_dropped_on_disk(model: Model, folder: Path) -> None:
    fill(model, folder, [TEXT[:60], OTHER[:40]])
    with Harness(model, n_slots=1, folder=folder) as harness:
        placement = harness.place(TEXT[:60])
        assert "from disk" in placement.reason
        harness.cache.failed(0)
        harness.busy.clear()
        assert harness.run(TEXT[:60]).n_cached == 0
        harness.cache.erase(0)
        assert harness.run(OTHER[:40]).n_cached == 39
        harness.cache.erase(0)
    assert names(folder) == set()
