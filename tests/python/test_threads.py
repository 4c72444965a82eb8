"""Threads and signals: the GIL is free during a decode, one thread at a time, Ctrl-C ends a prefill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llama_k3 import Context, ContextBusyError, Model, Sampler

# Far longer than any of these tests runs.
LONG = [(37 * i + 5) % 700 for i in range(30_000)]


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    with model.context(n_ctx=len(LONG), n_ubatch=64, snapshot_every=0) as opened:
        yield opened


@pytest.mark.parametrize(("n_ubatch", "whole_batches"), [(32, 2), (8192, 0)])
def test_ctrl_c_ends_a_prefill_within_a_second(model: Model, n_ubatch: int, whole_batches: int) -> None:
    """Between micro-batches and, with one that takes far longer, inside it."""
    begun = threading.Event()
    pressed = 0.0

    def press() -> None:
        nonlocal pressed
        begun.wait()
        time.sleep(0.3)
        pressed = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def progress(done: int, wanted: int) -> None:
        if done >= whole_batches * n_ubatch:
            begun.set()

    with model.context(n_ctx=8192, n_ubatch=n_ubatch, snapshot_every=0, progress=progress) as context:
        thread = threading.Thread(target=press)
        thread.start()
        if not whole_batches:
            begun.set()
        with pytest.raises(KeyboardInterrupt):
            context.decode(LONG[:8192])
        assert time.monotonic() - pressed < 1.0
        thread.join()
        done = context.position()
        assert done % n_ubatch == 0
        assert whole_batches * n_ubatch <= done < 8192
        # The sequence stands where it says, and goes on from there.
        found = context.decode(LONG[done : done + 3])
    with model.context(n_ctx=8192, snapshot_every=0) as other:
        assert np.abs(found - other.decode(LONG[: done + 3])).max() < 1e-3


def test_an_exception_of_a_signal_handler_is_passed_on(context: Context) -> None:
    def handler(number: int, frame: object) -> None:
        raise TimeoutError("too slow")

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="too slow"):
            context.decode(LONG)
    finally:
        signal.signal(signal.SIGALRM, old)


def test_ctrl_c_ends_a_load(tiny_gguf: Path) -> None:
    def interrupt(fraction: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Model(tiny_gguf, progress=interrupt)


def test_a_second_thread_is_refused_and_does_no_harm(model: Model) -> None:
    tokens = LONG[:1500]
    with model.context(n_ctx=2048) as context:
        wanted = context.decode(tokens)
    with model.context(n_ctx=2048) as context:
        results: list[np.ndarray] = []
        inside = threading.Event()

        def work() -> None:
            inside.set()
            results.append(context.decode(tokens))

        first = threading.Thread(target=work)
        first.start()
        inside.wait()
        # While the first thread computes, this one runs Python and is turned away.
        refused = 0
        while first.is_alive():
            time.sleep(0.01)
            if context.counters().prefill.tokens == len(tokens):
                break
            with pytest.raises(ContextBusyError, match="in use by another thread"):
                context.clear()
            for use in (context.tokens, context.memory):
                with pytest.raises(ContextBusyError, match="in use by another thread"):
                    use()
            with pytest.raises(ContextBusyError, match="cannot be closed"):
                context.close()
            refused += 1
        first.join()
        assert refused > 3
        assert np.array_equal(results[0], wanted)


def test_contexts_of_one_model_run_in_parallel(model: Model) -> None:
    contexts = [model.context(n_ctx=256) for _ in range(2)]
    wanted = contexts[0].decode(LONG[:200])
    contexts[0].clear()
    results: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        results[number] = contexts[number].decode(LONG[:200])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(results[number], wanted) for number in range(2))
    for context in contexts:
        context.close()


def test_threads_take_turns_with_a_sampler() -> None:
    rows = [np.zeros(size, np.float32) for size in (10, 1_000, 20_000, 200_000)]
    with Sampler(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) as sampler:

        def work(number: int) -> None:
            for step in range(40):
                row = rows[(number + step) % len(rows)]
                assert 0 <= sampler.sample(row) < row.size

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(rows))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_close_after_exceptions_at_any_moment(model: Model) -> None:
    """An exception of a signal handler comes between two lines of the package too; close() works after it."""

    class Alarm(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise Alarm

    random = np.random.default_rng(0)
    context = model.context(n_ctx=16)
    old = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + float(random.random()) * 1e-3)
                while True:
                    context.position()
            except Alarm as error:
                if random.random() < 0.02:
                    context.close()  # while the traceback still holds every frame
                    context = model.context(n_ctx=16)
                del error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    context.close()


def test_a_forked_process_has_no_threads_of_the_context(tiny_gguf: Path) -> None:
    """It is told so, can close the context, and can make another one."""
    script = f"""
import os
from llama_k3 import ArgumentError, Model
model = Model({str(tiny_gguf)!r}, n_threads=2)
context = model.context(n_ctx=64)
context.decode([1, 2, 3])
child = os.fork()
if child == 0:
    try:
        context.decode([4])
    except ArgumentError as error:
        print(error, flush=True)
    context.close()
    print(model.context(n_ctx=64).decode([1]).shape, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(context.decode([4]).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count("(1, 1024)") == 2
    assert "wanted one made after fork" in done.stdout
