"""The engine: what comes out does not depend on company, batch size or order; what requests hear."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llama_k3.server.engine.engine import Engine
from llama_k3.server.engine.options import EngineOptions
from llama_k3.server.engine.request import Action, Request, Sampling

from llama_k3 import ArgumentError, Model

from .recorder import GREEDY, Recorder, greedy_answer, settle, start

# Without a cache, so that a request computes all of its prompt.
OPTIONS = EngineOptions(n_ctx=1024, n_parallel=4, n_ubatch=64, cache_ram=0)
LENGTHS = (1, 2, 7, 30, 64, 65, 200, 333)


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.default_rng(11)
    return [rng.integers(5, 700, n).tolist() for n in lengths]


@pytest.fixture(scope="module")
def expected(model: Model) -> list[list[int]]:
    """Greedy answers to `prompts`, each made in a context of its own."""
    return [greedy_answer(model, prompt, 12) for prompt in prompts()]


@pytest.fixture(scope="module")
def engine(model: Model) -> Iterator[Engine]:
    opened = Engine(model, OPTIONS)
    yield opened
    opened.close()


@pytest.mark.parametrize("n_ubatch", [1, 3, 8, 512])
def test_answers_alone_and_in_company(model: Model, expected: list[list[int]], n_ubatch: int) -> None:
    engine = Engine(model, replace(OPTIONS, n_parallel=8, n_ubatch=n_ubatch))
    try:
        together = [start(engine, p, max_tokens=12, cache_prompt=False)[1] for p in prompts()]
        assert [sink.wait().reason for sink in together] == ["limit"] * 8
        assert [sink.tokens for sink in together] == expected
        if n_ubatch > 1:
            alone = start(engine, prompts()[3], max_tokens=12, cache_prompt=False)[1]
            alone.wait()
            assert alone.tokens == expected[3]
    finally:
        engine.close()


def test_seeded_answers_do_not_depend_on_company(model: Model) -> None:
    """Drawing and penalties use the request's own generator and its own tokens only."""
    sampling = Sampling(1.2, 0, 0.95, 0.0, 7, repeat_penalty=1.2, presence_penalty=0.3, repeat_last_n=-1)
    engine = Engine(model, replace(OPTIONS, n_parallel=8))
    try:
        alone = start(engine, prompts()[4], sampling=sampling, max_tokens=30)[1]
        alone.wait()
        others = [
            start(engine, p, sampling=Sampling(1.0, seed=i), max_tokens=20)[1]
            for i, p in enumerate(prompts())
        ]
        among = start(engine, prompts()[4], sampling=sampling, max_tokens=30)[1]
        other_seed = start(engine, prompts()[4], sampling=replace(sampling, seed=8), max_tokens=30)[1]
        for sink in (among, other_seed, *others):
            sink.wait()
        assert among.tokens == alone.tokens != other_seed.tokens
    finally:
        engine.close()


def test_progress_timings_and_stats(engine: Engine) -> None:
    before = engine.stats()
    _, sink = start(engine, prompts()[6], max_tokens=5)
    result = sink.wait()
    assert [(p.total, p.processed - p.cache) for p in sink.progress] == [
        (200, n) for n in (0, 64, 128, 192, 200)
    ]
    times = [p.time_ms for p in sink.progress]
    assert times == sorted(times) and times[0] >= 0
    timings = result.timings
    assert (result.n_prompt, result.n_predicted) == (200, 5)
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (0, 200, 5)
    assert timings.prompt_ms >= times[-1] and timings.predicted_ms > 0
    settle(engine)
    after = engine.stats()
    assert after.prompt_tokens - before.prompt_tokens == 200
    assert after.predicted_tokens - before.predicted_tokens == 5
    assert after.decode_calls - before.decode_calls == after.busy_slots - before.busy_slots == 4 + 4
    np.testing.assert_allclose(
        after.prompt_seconds - before.prompt_seconds, timings.prompt_ms / 1e3, atol=5e-3
    )
    np.testing.assert_allclose(after.predicted_seconds - before.predicted_seconds, timings.predicted_ms / 1e3)
    assert (after.requests_processing, after.requests_deferred) == (0, 0)
    assert after.n_tokens_max >= 204


def test_end_tokens(engine: Engine, expected: list[list[int]]) -> None:
    """The sink hears of the end token; one that is no end token for this request does not end it."""
    answer = expected[3]
    end = answer[4]
    _, sink = start(engine, prompts()[3], max_tokens=12, end_ids=frozenset({end}))
    assert sink.wait().reason == "eos"
    assert sink.tokens == answer[: answer.index(end) + 1]
    _, sink = start(engine, prompts()[3], max_tokens=12, banned=frozenset({answer[0]}))
    sink.wait()
    assert answer[0] not in sink.tokens


def test_stop_of_the_sink(engine: Engine, expected: list[list[int]]) -> None:
    _, sink = start(engine, prompts()[3], lambda n: Action(stop=n == 3), max_tokens=12)
    assert (sink.wait().reason, sink.tokens) == ("word", expected[3][:3])


@pytest.mark.parametrize("n_probs", [None, 2])
@pytest.mark.parametrize("n_ubatch", [1, 64])
def test_forced_tokens(model: Model, expected: list[list[int]], n_probs: int | None, n_ubatch: int) -> None:
    """They stand in the answer in place of drawn ones, are heard of, and the answer goes on behind them."""
    forced = [9, 33, 500, 77, 12]
    engine = Engine(model, replace(OPTIONS, n_ubatch=n_ubatch))

    def react(n: int) -> Action | None:
        # one that forces while forced tokens are still to come: they follow
        return Action(force=forced[:3]) if n == 2 else Action(force=forced[3:]) if n == 3 else None

    try:
        prompt = prompts()[2]
        before = engine.stats().decode_calls
        _, sink = start(engine, prompt, react, max_tokens=12, n_probs=n_probs)
        sink.wait()
        known = prompt + expected[2][:2] + forced
        assert sink.tokens == expected[2][:2] + forced + greedy_answer(model, known, 5)
        if n_probs is None and n_ubatch == 64:
            assert engine.stats().decode_calls - before == 12 - len(forced)
        if n_probs is not None:
            check_probs(model, prompt, sink, n_probs)
    finally:
        engine.close()


def check_probs(model: Model, prompt: list[int], sink: Recorder, n_probs: int) -> None:
    """Each token's probability is the model's own, also of forced tokens."""
    with model.context(n_ctx=256) as context:
        rows = context.decode(prompt + sink.tokens, logits="all")[len(prompt) - 1 :].astype(np.float64)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    for token, probs, row in zip(sink.tokens, sink.probs, rows, strict=False):
        assert probs is not None and probs.token == token and len(probs.top) == n_probs
        np.testing.assert_allclose(probs.logprob, row[token], rtol=1e-6)
        np.testing.assert_allclose([p for _, p in probs.top], np.sort(row)[::-1][:n_probs], rtol=1e-6)


def test_probabilities_are_of_the_models_own_logits(model: Model, engine: Engine) -> None:
    """Neither bans nor penalties show in them."""
    sampling = Sampling(0.9, seed=3, repeat_penalty=1.5, logit_bias={10: 5.0})
    _, sink = start(engine, prompts()[3], sampling=sampling, n_probs=4, banned=frozenset(range(20, 400)))
    sink.wait()
    check_probs(model, prompts()[3], sink, 4)
    _, sink = start(engine, prompts()[3], n_probs=None)
    sink.wait()
    assert set(sink.probs) == {None}


def test_a_constraint(engine: Engine) -> None:
    class Even:
        accepted: list[int] = []

        def mask(self, logits: Any) -> None:
            logits[1::2] = -np.inf

        def accept(self, token: int) -> None:
            self.accepted.append(token)
            if token % 2:
                raise ArgumentError(f"found {token}, wanted an even token")

    constraint = Even()
    _, sink = start(engine, prompts()[3], constraint=constraint)
    assert sink.wait().reason == "limit"
    assert all(token % 2 == 0 for token in sink.tokens) and constraint.accepted == sink.tokens
    _, sink = start(engine, prompts()[3], lambda n: Action(force=[7]), constraint=Even())
    result = sink.wait()
    assert result.reason == "error" and "wanted an even token" in str(result.error)


def test_limits(engine: Engine) -> None:
    _, none = start(engine, prompts()[3], max_tokens=0)
    assert (none.wait().reason, none.tokens) == ("limit", [])
    assert none.ends[0].timings.prompt_n == 30 and none.progress[-1].processed == 30
    _, one = start(engine, prompts()[3], max_tokens=-1, max_predict_ms=0.0)
    assert (one.wait().reason, len(one.tokens)) == ("limit", 1)


def test_a_full_context_ends_its_request_alone(model: Model, expected: list[list[int]]) -> None:
    engine = Engine(model, replace(OPTIONS, n_ctx=50))
    try:
        long = [
            start(engine, prompts()[3], max_tokens=-1)[1],
            start(engine, prompts()[6][:49], max_tokens=9)[1],
        ]
        short = start(engine, prompts()[2], max_tokens=12)[1]
        assert [sink.wait().reason for sink in long] == ["limit", "limit"]
        assert [len(sink.tokens) for sink in long] == [20, 1]
        short.wait()
        assert short.tokens == expected[2]
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "prompt: found 0 tokens, wanted 1 .. 1023"),
        ({"prompt": [5] * 1024}, "prompt: found 1024 tokens"),
        ({"prompt": [5, -1]}, r"prompt\[1\]: found -1"),
        ({"prompt": ["a"]}, "prompt: found"),
        ({"slot": 4}, "slot: found 4, wanted 0 .. 3"),
        ({"slot": -1}, "slot: found -1"),
        ({"max_tokens": -2}, "max_tokens: found -2"),
        ({"n_probs": -1}, "n_probs: found -1"),
        ({"boundaries": [2, 2]}, "boundaries: found"),
        ({"boundaries": [0]}, r"boundaries\[0\]: found 0"),
        ({"boundaries": [9]}, r"boundaries\[0\]: found 9, wanted 1 .. 3"),
        ({"deadline": float("nan")}, "deadline: found nan"),
        ({"max_predict_ms": "soon"}, "max_predict_ms: found 'soon'"),
        ({"sampling": Sampling(temperature=-1)}, "temperature: found -1"),
    ],
)
def test_requests_that_are_refused(engine: Engine, options: dict[str, Any], message: str) -> None:
    """With an error for the caller; the sink hears nothing."""
    sink = Recorder()
    with pytest.raises(ArgumentError, match=message):
        engine.submit(Request(**{"prompt": [5, 6, 7], "sink": sink, **options}))
    assert not sink.ends


def test_idle_takes_no_time(engine: Engine) -> None:
    """The thread waits, also after work."""
    start(engine, [5])[1].wait()
    before = engine.call(lambda _: time.thread_time()).result()
    time.sleep(0.3)  # what is measured, not a wait for something
    assert engine.call(lambda _: time.thread_time()).result() - before < 0.03


def test_calls(engine: Engine) -> None:
    assert engine.call(lambda context: context.n_vocab).result() == engine.call(lambda c: c.n_vocab).result()

    def fail(_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        engine.call(fail).result()
    assert start(engine, [5])[1].wait().reason == "limit"


def test_log_lines(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "llama_k3.server"):
        start(engine, prompts()[3], sampling=GREEDY)[1].wait()
        settle(engine)
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("slot ") and first.endswith("; cache_n 0")
    assert "limit; prompt 30 tokens in " in last and "answer 8 tokens in " in last
