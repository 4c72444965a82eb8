"""Scheduling: order and positions of the queue, shares of a micro-batch, cancels, deadlines, the end."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_k3.server.engine.batch import fair_shares
from llama_k3.server.engine.engine import Engine, QueueFullError
from llama_k3.server.engine.options import EngineOptions
from llama_k3.server.engine.request import Action, Request, Sampling

from llama_k3 import ArgumentError, ClosedError, Context, Model

from .recorder import GREEDY, PATIENCE, Recorder, held, settle, start

OPTIONS = EngineOptions(n_ctx=512, n_parallel=2, n_ubatch=32, cache_ram=0)


def prompt_of(n: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(5, 700, n).tolist()
    return tokens


@pytest.fixture
def engine(model: Model) -> Iterator[Engine]:
    opened = Engine(model, OPTIONS)
    yield opened
    opened.close()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(wanted=st.lists(st.integers(0, 50), max_size=9), room=st.integers(0, 120))
def test_fair_shares(wanted: list[int], room: int) -> None:
    shares = fair_shares(wanted, room)
    assert sum(shares) == min(room, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    # who gets less than it wants has at most one token less than anyone else
    assert all(s >= max(shares) - 1 for s, want in zip(shares, wanted, strict=True) if s < want)


# ---- the queue ----


def test_order_and_positions(engine: Engine) -> None:
    """First come, first served; who waits for a busy slot does not block the others."""
    order: list[str] = []

    class Named(Recorder):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_end(self, result: object) -> None:
            order.append(self.name)
            super().on_end(result)  # type: ignore[arg-type]

    def request(name: str, n: int, slot: int | None = None) -> Request:
        return Request(prompt_of(4), Named(name), GREEDY, max_tokens=n, slot=slot)

    with held(engine):
        wanted = [
            request("long in 0", 60, 0),
            request("waits for 0", 1, 0),
            request("first", 4),
            request("second", 4, 1),
            request("third", 4),
        ]
        for one in wanted:
            engine.submit(one)
        assert [engine.queue_position(one) for one in wanted] == [0, 1, 2, 3, 4]
        assert engine.queue_position(request("unknown", 1)) is None
        assert engine.stats().requests_deferred == 5
    for one in wanted:
        assert isinstance(one.sink, Named)
        one.sink.wait()
    assert order == ["first", "second", "third", "long in 0", "waits for 0"]
    assert [one.sink.ends[0].slot for one in wanted] == [0, 0, 1, 1, 1]  # type: ignore[attr-defined]
    assert engine.queue_position(wanted[0]) is None


def test_after_waits_for_the_prompt_of_another(engine: Engine) -> None:
    with held(engine):
        first, first_sink = start(engine, prompt_of(100), max_tokens=40)
        second, second_sink = start(engine, prompt_of(100), max_tokens=2, after=first)
        _, third_sink = start(engine, prompt_of(3), max_tokens=1)
    calls: list[int] = []
    second_sink.on_progress = lambda progress: calls.append(len(first_sink.tokens))  # type: ignore[method-assign]
    for sink in (first_sink, second_sink, third_sink):
        sink.wait()
    assert calls[0] >= 1 and second_sink.tokens == first_sink.tokens[:2]
    # one that comes after a request which is over, was never submitted or is cancelled does not wait
    for other in (first, Request([5], Recorder())):
        assert start(engine, prompt_of(3), after=other)[1].wait().reason == "limit"
    with held(engine):
        blocking = [start(engine, prompt_of(3), max_tokens=400) for _ in range(2)]
        waiting, waiting_sink = start(engine, prompt_of(3))
        _, last_sink = start(engine, prompt_of(3), after=waiting)
        engine.cancel(waiting)
    for request, _ in blocking:
        engine.cancel(request)
    assert (waiting_sink.wait().reason, last_sink.wait().reason) == ("cancelled", "limit")


def test_a_full_queue(model: Model) -> None:
    engine = Engine(model, replace(OPTIONS, max_queue=3))
    try:
        with held(engine):
            accepted = [start(engine, prompt_of(3)) for _ in range(5)]  # two slots, three that wait
            with pytest.raises(QueueFullError, match="found 5 requests waiting"):
                start(engine, prompt_of(3))
            with pytest.raises(ArgumentError, match="not over yet"):
                engine.submit(accepted[0][0])
        assert [sink.wait().reason for _, sink in accepted] == ["limit"] * 5
        assert start(engine, prompt_of(3))[1].wait().reason == "limit"
    finally:
        engine.close()


# ---- shares of the micro-batch ----


@pytest.mark.parametrize(("n_short", "boundaries", "cache_ram"), [(1, [12], 1 << 30), (3, [], 0)])
def test_short_prompts_behind_a_long_one(
    model: Model, n_short: int, boundaries: list[int], cache_ram: int
) -> None:
    """Their first tokens come within two micro-batches, also where a checkpoint is made in them, while a
    long prompt is being read and streams run; no stream misses a micro-batch."""
    options = replace(OPTIONS, n_ctx=6100, n_parallel=8, n_ubatch=128, cache_ram=cache_ram)
    engine = Engine(model, options)
    try:
        stream_calls: list[int] = []
        first_calls: list[int] = []
        shorts: list[Recorder] = []
        submitted: list[int] = []

        def on_stream(n: int) -> None:
            stream_calls.append(engine.stats().decode_calls)
            if n == 8:  # on the engine's thread, between two micro-batches, with the long prompt under way
                submitted.append(stream_calls[-1])
                for i in range(n_short):
                    react = lambda n: first_calls.append(engine.stats().decode_calls) if n == 1 else None  # noqa: E731
                    shorts.append(start(engine, prompt_of(20, i), react, boundaries=boundaries)[1])

        with held(engine):
            _, stream = start(engine, prompt_of(5), on_stream, max_tokens=40)
            _, long = start(engine, prompt_of(6000), max_tokens=1)
        stream.wait()
        assert [sink.wait().reason for sink in shorts] == ["limit"] * n_short
        assert all(call - submitted[0] <= 2 for call in first_calls) and len(first_calls) == n_short
        assert stream_calls == list(range(stream_calls[0], stream_calls[0] + 40))
        long.wait()
        assert long.progress[-1].processed == 6000
        # the long prompt had all that the others left: 40 micro-batches did not suffice, 48 do
        assert engine.stats().decode_calls <= 50
    finally:
        engine.close()


@pytest.mark.parametrize("n_ubatch", [1, 3])
def test_more_streams_than_tokens_in_a_batch(model: Model, n_ubatch: int) -> None:
    """They take turns, and so do prompts."""
    engine = Engine(model, replace(OPTIONS, n_parallel=8, n_ubatch=n_ubatch))
    try:
        calls: list[list[int]] = [[] for _ in range(8)]

        def note_call(to: list[int]) -> Callable[[int], None]:
            return lambda _: to.append(engine.stats().decode_calls)

        with held(engine):
            sinks = [start(engine, prompt_of(2), note_call(one))[1] for one in calls]
        for sink in sinks:
            sink.wait()
        turn = -(-8 // n_ubatch)
        gaps = [b - a for one in calls for a, b in zip(one, one[1:], strict=False)]
        assert max(gaps) <= turn
        first = [one[0] for one in calls]
        assert max(first) - min(first) <= 2 * turn
    finally:
        engine.close()


# ---- cancels and deadlines ----


def test_cancels_touch_nobody_else(model: Model) -> None:
    """At random tokens, by the engine's thread and by others, of requests that wait, read or generate."""
    engine = Engine(model, replace(OPTIONS, n_parallel=4))
    rng = random.Random(4)
    try:
        expected = {}
        for seed in range(6):
            _, sink = start(engine, prompt_of(10 + 13 * seed, seed), max_tokens=16, cache_prompt=False)
            sink.wait()
            expected[seed] = sink.tokens
        running: list[tuple[Request, Recorder, int]] = []
        for index in range(80):
            seed = rng.randrange(6)
            victim_at = rng.choice([None, None, 1, 4, 9])
            request = Request(prompt_of(10 + 13 * seed, seed), Recorder(), GREEDY, max_tokens=16)
            if victim_at is not None:
                request.sink = Recorder(
                    lambda n, r=request, at=victim_at: engine.cancel(r) if n == at else None  # type: ignore[misc]
                )
            engine.submit(request)
            assert isinstance(request.sink, Recorder)
            running.append((request, request.sink, seed))
            if index % 5 == 0:
                engine.cancel(rng.choice(running)[0])
        for _, sink, seed in running:
            reason = sink.wait().reason
            assert reason in ("limit", "cancelled") and len(sink.ends) == 1
            assert sink.tokens == expected[seed][: len(sink.tokens)]
            assert len(sink.tokens) == 16 or reason == "cancelled"
        settle(engine)
        assert [slot.state for slot in engine.slots()] == ["idle"] * 4
        assert {sink.ends[0].reason for _, sink, _ in running} == {"limit", "cancelled"}
    finally:
        engine.close()


def test_a_cancel_takes_effect_within_one_micro_batch(engine: Engine) -> None:
    calls: list[int] = []
    request, sink = start(engine, prompt_of(400), max_tokens=100)

    def cancel_while_read(_: Context) -> int:
        engine.cancel(request)
        return engine.stats().decode_calls

    calls.append(engine.call(cancel_while_read).result())
    assert sink.wait().reason == "cancelled"
    settle(engine)
    assert engine.stats().decode_calls - calls[0] <= 1
    assert sink.ends[0].timings.prompt_n <= 400
    engine.cancel(request)  # over: no effect


def test_deadlines(engine: Engine) -> None:
    past = time.monotonic() - 1
    _, late = start(engine, prompt_of(3), deadline=past)
    assert (late.wait().reason, late.tokens, late.ends[0].slot) == ("deadline", [], -1)
    endless = [start(engine, prompt_of(3), max_tokens=-1, banned=frozenset()) for _ in range(2)]
    _, queued = start(engine, prompt_of(3), slot=0, deadline=time.monotonic() + 0.01)
    _, running = start(engine, prompt_of(450), max_tokens=-1, deadline=time.monotonic() + 1e9)
    assert queued.wait().reason in ("deadline", "limit")
    for request, _ in endless:
        engine.cancel(request)
    assert running.wait().reason == "limit"


def test_a_deadline_ends_an_answer(engine: Engine) -> None:
    deadline = time.monotonic() + PATIENCE
    request = Request(prompt_of(3), Recorder(), GREEDY, deadline=deadline)

    def come(n: int) -> None:
        if n == 5:
            request.deadline = time.monotonic()

    sink = Recorder(come)
    request.sink = sink
    engine.submit(request)
    assert (sink.wait().reason, len(sink.tokens)) == ("deadline", 5)


def test_a_time_limit_of_the_answer(engine: Engine) -> None:
    _, sink = start(engine, prompt_of(3), max_tokens=-1, max_predict_ms=1e-3)
    assert sink.wait().reason == "limit"
    assert len(sink.tokens) == 2


# ---- many at once, and the end ----


def test_many_threads(model: Model) -> None:
    """Everything that may be called from any thread is called from eight of them."""
    engine = Engine(model, replace(OPTIONS, n_parallel=3, max_queue=1000))
    failures: list[BaseException] = []
    counts: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            mine = []
            for _ in range(25):
                request, sink = start(
                    engine, prompt_of(rng.randrange(1, 60), seed), max_tokens=rng.randrange(0, 6)
                )
                mine.append(sink)
                if rng.random() < 0.3:
                    engine.cancel(request)
                assert len(engine.slots()) == 3
                assert engine.stats().decode_calls >= 0
                engine.queue_position(request)
                if rng.random() < 0.2:
                    engine.call(lambda context: context.memory()).result(PATIENCE)
                if rng.random() < 0.5:
                    sink.wait()
            counts.extend(len(sink.ends) for sink in mine if sink.wait())
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    engine.close()
    assert not failures and counts == [1] * 200


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fails_at(number: int | None) -> Callable[[int], Action | None]:
    """A sink's reaction that wants something impossible at one token."""
    return lambda n: Action(force=[10**9]) if n == number else None


def test_no_slot_is_stuck_and_memory_is_flat(model: Model) -> None:
    """After 300 random requests, of which some are cancelled, fail or have a deadline."""
    engine = Engine(model, replace(OPTIONS, n_parallel=4, max_queue=1000))
    rng = random.Random(9)
    references: list[weakref.ref[Request]] = []

    def burst(n: int) -> None:
        sinks = []
        for _ in range(n):
            request, sink = start(
                engine,
                prompt_of(rng.randrange(1, 120), rng.randrange(5)),
                fails_at(rng.choice([None] * 5 + [1, 3])),
                max_tokens=rng.randrange(0, 12),
                sampling=Sampling(1.0, seed=1, repeat_penalty=1.1),
                slot=rng.choice([None, None, 0, 3]),
                deadline=rng.choice([None, None, time.monotonic() + rng.random() * 0.1]),
                after=references[-1]() if references else None,
            )
            references.append(weakref.ref(request))
            sinks.append(sink)
            if rng.random() < 0.2:
                engine.cancel(request)
        for sink in sinks:
            sink.wait()
            assert len(sink.ends) == 1

    try:
        burst(100)
        before = resident_bytes()
        burst(200)
        settle(engine)
        assert [slot.state for slot in engine.slots()] == ["idle"] * 4
        assert engine.stats().requests_deferred == engine.stats().requests_processing == 0
        assert resident_bytes() - before < 8 << 20
        gc.collect()
        assert [ref for ref in references if ref() is not None] == []
    finally:
        engine.close()


def test_close_ends_everything(model: Model) -> None:
    others = set(threading.enumerate())
    engine = Engine(model, OPTIONS)
    (thread,) = {thread for thread in threading.enumerate() if "engine" in thread.name} - others
    with held(engine):
        sinks = [start(engine, prompt_of(300), max_tokens=-1)[1] for _ in range(5)]
    assert sinks[0].first_token.wait(PATIENCE)
    context = engine.call(lambda context: context).result()
    engine.close()
    engine.close()
    assert [[end.reason for end in sink.ends] for sink in sinks] == [["cancelled"]] * 5
    assert context.closed
    assert not thread.is_alive()
    with pytest.raises(ClosedError, match="the engine is closed"):
        start(engine, [5])
    with pytest.raises(ClosedError, match="the engine is closed"):
        engine.call(lambda _: None)
    engine.cancel(Request([5], Recorder()))


def test_close_from_a_sink_and_calls_that_are_left(model: Model) -> None:
    engine = Engine(model, OPTIONS)
    left: list[Future[None]] = []

    def close(n: int) -> None:
        if n == 2:
            left.append(engine.call(lambda _: None))
            engine.close()

    _, sink = start(engine, [5], close, max_tokens=-1)
    assert (sink.wait().reason, len(sink.tokens)) == ("cancelled", 2)
    engine.close()
    with pytest.raises(ClosedError, match="the engine is closed"):
        left[0].result(PATIENCE)
