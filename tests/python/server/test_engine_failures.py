"""What goes wrong in one request ends that request, in a batch those that are in it; slot files."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from llama_k3.errors import NonFiniteError, OutOfMemoryError, StateFormatError
from llama_k3.server.engine.batch import MicroBatch
from llama_k3.server.engine.engine import Engine
from llama_k3.server.engine.options import EngineOptions
from llama_k3.server.engine.prefix_cache import Placement
from llama_k3.server.engine.request import Action, Request, Result, TokenProbs

from llama_k3 import ArgumentError, Context, LlamaK3Error, Model, StateError

from .recorder import GREEDY, Recorder, greedy_answer, held, settle, start

OPTIONS = EngineOptions(n_ctx=256, n_parallel=4, n_ubatch=32, snapshot_min_step=16)
POISON = 999  # a token whose embedding is not finite in the poisoned model
PROMPT = list(range(40, 80))


@pytest.fixture
def engine(model: Model) -> Iterator[Engine]:
    opened = Engine(model, OPTIONS)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def poisoned(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The tiny model with NaN in one row of its embeddings."""
    path = tmp_path_factory.mktemp("poisoned") / "model.gguf"
    path.write_bytes(tiny_gguf.read_bytes())
    [embeddings] = [t for t in GGUFReader(path).tensors if t.name == "token_embd.weight"]
    row_bytes = int(embeddings.n_bytes) // int(embeddings.shape[1])
    with path.open("r+b") as file:
        file.seek(int(embeddings.data_offset) + POISON * row_bytes)
        file.write(np.full(row_bytes // 2, 0x7FC0, np.uint16).tobytes())
    with Model(path, n_threads=2) as opened:
        yield opened


def test_logits_that_are_not_finite(poisoned: Model, model: Model) -> None:
    """The request ends alone, whether it reads its prompt or generates, and nothing of it is used again."""
    engine = Engine(poisoned, OPTIONS)
    answer = greedy_answer(model, PROMPT, 8)
    try:
        poison = [*PROMPT[:30], POISON, *PROMPT[:9]]
        with held(engine):
            bad = [
                start(engine, poison, boundaries=[20, 31, 35])[1],
                start(engine, PROMPT, lambda n: Action(force=[POISON]) if n == 3 else None)[1],
            ]
            good = [start(engine, PROMPT)[1] for _ in range(2)]
        for sink in bad:
            result = sink.wait()
            assert result.reason == "error" and isinstance(result.error, NonFiniteError)
            assert f"slot {result.slot}: " in str(result.error)
        assert (bad[0].tokens, bad[1].tokens) == ([], [*answer[:3], POISON])
        for sink in good:
            assert (sink.wait().reason, sink.tokens) == ("limit", answer)
        # a prompt that shares its beginning with the bad one, beyond the poison, gets no state of it
        clean = start(engine, PROMPT)[1]
        assert (clean.wait().reason, clean.tokens) == ("limit", answer)
        again = start(engine, [*poison[:31], 5, 6], boundaries=[20, 31])[1]
        assert isinstance(again.wait().error, NonFiniteError)
        after = start(engine, [*poison[:30], 5, 6, 7])[1]
        assert (after.wait().reason, after.tokens) == (
            "limit",
            greedy_answer(model, [*poison[:30], 5, 6, 7], 8),
        )
    finally:
        engine.close()


class Failing(Recorder):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def on_token(self, token: int, probs: TokenProbs | None) -> Action:
        if self.method == "on_token" and len(self.tokens) == 3:
            raise KeyError("sink")
        return super().on_token(token, probs)

    def on_progress(self, progress: Any) -> None:
        super().on_progress(progress)
        if self.method == "on_progress" or (self.method == "later" and len(self.progress) == 2):
            raise KeyError("sink")

    def on_end(self, result: Result) -> None:
        super().on_end(result)
        if self.method == "on_end":
            raise KeyError("sink")


@pytest.mark.parametrize("method", ["on_token", "on_progress", "later", "on_end"])
def test_a_sink_that_raises(
    engine: Engine, model: Model, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with held(engine):
        bad = Failing(method)
        engine.submit(Request(PROMPT, bad, GREEDY, max_tokens=8))
        others = [start(engine, PROMPT[:n])[1] for n in (5, 39, 40)]
    result = bad.wait()
    if method == "on_end":
        assert result.reason == "limit"
        settle(engine)
        assert "the sink failed at the end of its request" in caplog.text
    else:
        assert result.reason == "error" and "KeyError: 'sink'" in str(result.error)
    for sink, n in zip(others, (5, 39, 40), strict=True):
        sink.wait()
        assert sink.tokens == greedy_answer(model, PROMPT[:n], 8)
    assert len(bad.ends) == 1
    assert [slot.state for slot in engine.slots()] == ["idle"] * 4


@pytest.mark.parametrize("force", [[1024], [-1], ["a"], [1.5]])
def test_forced_tokens_that_are_none(engine: Engine, force: Any) -> None:
    _, sink = start(engine, PROMPT, lambda n: Action(force=force) if n == 2 else None)
    result = sink.wait()
    assert (result.reason, len(sink.tokens)) == ("error", 2) and "forced token: found" in str(result.error)


@pytest.mark.parametrize(
    "error", [OutOfMemoryError("none left"), MemoryError("none left"), RuntimeError("odd")]
)
def test_a_batch_that_fails(
    engine: Engine, model: Model, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends the requests in it; those that wait run."""
    decode = MicroBatch.decode
    calls: list[int] = []

    def fail_once(self: MicroBatch, context: Context) -> None:
        calls.append(self.n_tokens)
        if len(calls) == 3:
            raise error
        decode(self, context)

    with held(engine):
        monkeypatch.setattr(MicroBatch, "decode", fail_once)
        sinks = [start(engine, PROMPT[:n])[1] for n in (3, 4, 5, 6, 40, 39)]
    results = [sink.wait() for sink in sinks]
    assert [result.reason for result in results] == ["error"] * 4 + ["limit"] * 2
    for result in results[:4]:
        assert isinstance(result.error, LlamaK3Error) and str(error) in str(result.error)
    assert [sink.tokens for sink in sinks[4:]] == [greedy_answer(model, PROMPT[:n], 8) for n in (40, 39)]


@pytest.mark.parametrize("method", ["place", "checkpoint", "release"])
def test_a_cache_that_fails(
    engine: Engine,
    model: Model,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = engine._cache
    original = getattr(cache, method)
    failed: list[str] = []

    def fail_once(*arguments: Any) -> Any:
        if not failed:
            failed.append(method)
            raise OutOfMemoryError("no room for a snapshot")
        return original(*arguments)

    monkeypatch.setattr(cache, method, fail_once)
    first = start(engine, PROMPT, boundaries=[20])[1].wait()
    if method == "release":
        assert first.reason == "limit" and "the prefix cache failed" in caplog.text
    else:
        assert first.reason == "error" and "no room for a snapshot" in str(first.error)
    for _ in range(5):
        _, sink = start(engine, PROMPT, boundaries=[20])
        sink.wait()
        assert sink.tokens == greedy_answer(model, PROMPT, 8)
    assert [slot.state for slot in engine.slots()] == ["idle"] * 4


def test_an_engine_that_cannot_start(model: Model, tmp_path: Path) -> None:
    for options in (
        replace(OPTIONS, n_parallel=0),
        replace(OPTIONS, n_ubatch=0),
        replace(OPTIONS, kv_type="q3"),
        replace(OPTIONS, max_queue=-1),
    ):
        with pytest.raises(ArgumentError, match="found"):
            Engine(model, options)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StateError):
        Engine(model, replace(OPTIONS, cache_disk=tmp_path / "file", cache_disk_size=1 << 20))


# ---- a cached sequence that comes from disk ----


class SlowDisk:
    """Makes the placements of PROMPT wait for a future of the test's."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.future: Future[Any] = Future()
        self.asked = threading.Event()
        self.calls: list[str] = []
        cache = engine._cache
        place = cache.place

        def slow_place(prompt: list[int], *more: Any) -> Placement:
            placement = place(prompt, *more)
            if prompt != PROMPT:
                return placement
            self.asked.set()
            return replace(placement, pending=self.future, n_cached=0)

        def finish(placement: Placement) -> Placement:
            self.calls.append("finish")
            self.future.result()
            return replace(placement, pending=None)

        def noting_abandon(placement: Placement) -> None:
            self.calls.append("abandon")
            cache.release(placement.slot)

        monkeypatch.setattr(cache, "place", slow_place)
        monkeypatch.setattr(cache, "finish", finish)
        monkeypatch.setattr(cache, "abandon", noting_abandon)


def test_a_file_that_takes_its_time(engine: Engine, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run meanwhile; the slot shows that it waits."""
    disk = SlowDisk(engine, monkeypatch)
    _, waiting = start(engine, PROMPT)
    assert disk.asked.wait(60)
    settle(engine)
    assert sorted(slot.state for slot in engine.slots()) == ["idle"] * 3 + ["waiting"]
    _, other = start(engine, PROMPT[:9])
    assert other.wait().reason == "limit"
    assert not waiting.progress and not waiting.over
    disk.future.set_result(None)
    assert waiting.wait().reason == "limit"
    assert waiting.tokens == greedy_answer(model, PROMPT, 8) and disk.calls == ["finish"]


@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
def test_the_end_of_a_request_that_waits_for_a_file(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    disk = SlowDisk(engine, monkeypatch)
    deadline = time.monotonic() + 0.05 if how == "deadline" else None
    request, waiting = start(engine, PROMPT, deadline=deadline)
    if how != "deadline":
        assert disk.asked.wait(60)
        engine.cancel(request) if how == "cancel" else engine.close()
    result = waiting.wait()
    assert result.reason == ("deadline" if how == "deadline" else "cancelled")
    assert result.timings.prompt_n == 0
    if disk.asked.is_set() and how != "close":
        settle(engine)
        assert disk.calls == ["abandon"]
        disk.future.set_result(None)
        assert start(engine, PROMPT[:9])[1].wait().reason == "limit"


def test_a_file_that_cannot_be_put_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(engine, monkeypatch)
    _, waiting = start(engine, PROMPT)
    assert disk.asked.wait(60)
    disk.future.set_exception(OSError("disk on fire"))
    result = waiting.wait()
    assert result.reason == "error" and "disk on fire" in str(result.error)
    assert start(engine, PROMPT[:9])[1].wait().reason == "limit"


# ---- slot files ----


def test_slot_saved_and_restored(engine: Engine, model: Model) -> None:
    """In another engine too, and with its snapshots."""
    _, first = start(engine, PROMPT, boundaries=[10, 30], slot=2)
    first.wait()
    block = engine.save_slot(2).result()
    other = Engine(model, OPTIONS)
    try:
        assert other.restore_slot(1, block).result() == 47
        assert other.slots()[1].n_past == 47
        _, repeated = start(other, PROMPT)
        assert repeated.wait().timings.cache_n >= 30
        assert repeated.tokens == first.tokens
        _, continued = start(other, [*PROMPT[:30], 7, 8])
        assert continued.wait().timings.cache_n >= 30
        assert continued.tokens == greedy_answer(model, [*PROMPT[:30], 7, 8], 8)
    finally:
        other.close()


def test_slot_erased(engine: Engine) -> None:
    start(engine, PROMPT, slot=2)[1].wait()
    assert engine.erase_slot(2).result() == 47
    assert engine.slots()[2].n_past == 0
    _, sink = start(engine, PROMPT)
    assert sink.wait().timings.cache_n == 0
    assert engine.erase_slot(3).result() == 0


def test_actions_on_slots_that_are_refused(engine: Engine) -> None:
    block = engine.save_slot(0).result()
    with held(engine):
        request, sink = start(engine, PROMPT, max_tokens=-1, slot=0)
    assert sink.first_token.wait(60)
    for future in (engine.save_slot(0), engine.restore_slot(0, block), engine.erase_slot(0)):
        with pytest.raises(ArgumentError, match="slot 0: found a request in it, wanted an idle slot"):
            future.result()
    engine.cancel(request)
    sink.wait()
    with pytest.raises(ArgumentError, match="slot: found 4, wanted 0 .. 3"):
        engine.save_slot(4).result()


@pytest.mark.parametrize("damage", [b"", b"abc", b"\0" * 500])
def test_blocks_that_are_refused(engine: Engine, damage: bytes) -> None:
    start(engine, PROMPT, slot=0)[1].wait()
    with pytest.raises(StateFormatError):
        engine.restore_slot(0, damage).result()
    block = bytearray(engine.save_slot(0).result())
    block[-1] ^= 1
    with pytest.raises(StateError, match="checksum"):
        engine.restore_slot(0, bytes(block)).result()


def test_log_of_the_cache(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Each placement says what was reused and why."""
    with caplog.at_level(logging.INFO, "llama_k3.server"):
        start(engine, PROMPT, boundaries=[30])[1].wait()
        start(engine, PROMPT, boundaries=[30])[1].wait()
        settle(engine)
    lines = [record.getMessage() for record in caplog.records if "cache_n" in record.getMessage()]
    assert "miss: no common prefix; cache_n 0" in lines[0]
    assert "30 of 40 tokens in place" in lines[2] and "; cache_n 30" in lines[2] and len(lines) == 4
    assert (engine.stats().cache_hits, engine.stats().cache_misses) == (1, 1)
