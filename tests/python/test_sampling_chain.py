"""The sampler chain against a plain rendition of each of its steps, and the log probabilities."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_k3.errors import NonFiniteError
from llama_k3.server.engine.chain import NEVER, PenaltyWindow, SamplerChain, token_probs
from llama_k3.server.engine.request import Sampling

from llama_k3 import ArgumentError, Sampler

N_VOCAB = 500
Row = npt.NDArray[np.float32]


def logits(seed: int = 0, n: int = N_VOCAB) -> Row:
    return (np.random.default_rng(seed).standard_normal(n) * 3).astype(np.float32)


class OnlyAbove:
    """A constraint: each token has to be larger than the one before."""

    def __init__(self) -> None:
        self.last = -1

    def mask(self, row: Row) -> None:
        row[: self.last + 1] = -np.inf

    def accept(self, token: int) -> None:
        if token <= self.last:
            raise ArgumentError(f"found {token}, wanted more than {self.last}")
        self.last = token


def test_greedy_takes_the_largest_and_the_lower_of_two() -> None:
    row = logits()
    chain = SamplerChain(N_VOCAB, Sampling(temperature=0.0))
    assert not chain.changes_row
    assert chain.sample(row) == int(np.argmax(row))
    row[[7, 450]] = 99.0
    assert chain.sample(row) == 7


@pytest.mark.parametrize("top_k", [0, 1, 3, 40, N_VOCAB, 10**12, -1])
def test_draws_are_those_of_the_sampler(top_k: int) -> None:
    """The shortlist of the likeliest tokens, which is made where top_k is small, changes no draw."""
    rows = [np.round(logits(seed, 5000), 1).astype(np.float32) for seed in range(40)]  # with ties
    chain = SamplerChain(5000, Sampling(1.3, top_k, 0.95, 0.02, seed=5))
    plain = Sampler(1.3, min(top_k, 5000), 0.95, 0.02, seed=5)
    assert [chain.sample(row.copy()) for row in rows] == [plain.sample(row) for row in rows]


def test_a_seed_gives_the_same_draws() -> None:
    def draws(seed: int | None) -> list[int]:
        chain = SamplerChain(N_VOCAB, Sampling(temperature=2.0, seed=seed))
        return [chain.sample(logits(i)) for i in range(20)]

    assert draws(3) == draws(3) != draws(4)
    assert draws(None) != draws(None)


def penalised(row: Row, seen: list[int], s: Sampling) -> Row:
    """llama.cpp's formulas, token by token."""
    last = seen if s.repeat_last_n < 0 else seen[len(seen) - min(len(seen), s.repeat_last_n) :]
    row = row.copy()
    for token, count in Counter(last).items():
        value = np.float32(row[token])
        value = value * np.float32(s.repeat_penalty) if value <= 0 else value / np.float32(s.repeat_penalty)
        row[token] = value - np.float32(count * s.frequency_penalty + s.presence_penalty)
    return row


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    repeat=st.sampled_from([1.0, 1.1, 2.0, 0.5]),
    presence=st.sampled_from([0.0, 0.7, -1.5]),
    frequency=st.sampled_from([0.0, 0.4, -0.2]),
    last_n=st.sampled_from([-1, 0, 1, 5, 64]),
    prompt=st.lists(st.integers(0, 30), max_size=80),
    answer=st.lists(st.integers(0, 30), max_size=40),
)
def test_penalties(
    repeat: float, presence: float, frequency: float, last_n: int, prompt: list[int], answer: list[int]
) -> None:
    """Prompt and answer count alike, as far back as repeat_last_n reaches."""
    sampling = Sampling(0.0, 0, 1.0, 0.0, 0, repeat, last_n, presence, frequency)
    chain = SamplerChain(N_VOCAB, sampling)
    chain.accept_prompt(prompt)
    for token in answer:
        chain.accept(token)
    row = logits(len(prompt))
    row[:31] += 8  # so that the penalised ones are among the largest
    wanted = penalised(row, prompt + answer, sampling)
    token = chain.sample(row)
    assert wanted[token] >= wanted.max() - 1e-4
    np.testing.assert_allclose(row, wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(size=st.sampled_from([-1, 0, 1, 3, 64]), tokens=st.lists(st.integers(0, 300), max_size=300))
def test_window_counts(size: int, tokens: list[int]) -> None:
    window = PenaltyWindow(size)
    for token in tokens:
        window.accept(token)
    ids, counts = window.occurring()
    assert len(set(ids.tolist())) == len(ids)
    last = tokens if size < 0 else tokens[max(0, len(tokens) - size) :]
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == Counter(last)


def test_bias_and_bans() -> None:
    row = logits()
    best, second, third = np.argsort(-row)[:3].tolist()
    assert SamplerChain(N_VOCAB, Sampling(0.0, logit_bias={17: 1e3})).sample(row.copy()) == 17
    assert SamplerChain(N_VOCAB, Sampling(0.0, logit_bias={best: -math.inf})).sample(row.copy()) == second
    assert SamplerChain(N_VOCAB, Sampling(0.0, logit_bias={best: -1e3}), {second}).sample(row.copy()) == third
    # a ban stands behind a bias and a penalty that would lift the token
    lifted = Sampling(0.0, logit_bias={best: 1e9}, presence_penalty=-100.0)
    chain = SamplerChain(N_VOCAB, lifted, {best})
    chain.accept_prompt([best])
    assert chain.sample(row.copy()) == second


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1e6])
@pytest.mark.parametrize("top_k", [0, 40])
def test_banned_tokens_are_never_drawn(temperature: float, top_k: int) -> None:
    allowed = {3, 77, 431}
    sampling = Sampling(temperature, top_k, 1.0, 0.0, seed=1)
    chain = SamplerChain(N_VOCAB, sampling, set(range(N_VOCAB)) - allowed)
    drawn = {chain.sample(logits(i)) for i in range(200)}
    assert drawn <= allowed
    assert temperature == 0 or drawn == allowed


def test_constraint_comes_last_and_hears_every_token() -> None:
    constraint = OnlyAbove()
    chain = SamplerChain(N_VOCAB, Sampling(0.0, logit_bias={2: 1e3}), constraint=constraint)
    assert chain.changes_row
    chain.accept_prompt([400])  # not the constraint's business
    answer = []
    for i in range(3):
        answer.append(chain.sample(logits(i)))
        chain.accept(answer[-1])
    assert answer[0] == 2 and answer == sorted(set(answer)) and constraint.last == answer[-1]
    with pytest.raises(ArgumentError, match="wanted more than"):
        chain.accept(0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nothing_left_to_draw(temperature: float) -> None:
    chain = SamplerChain(N_VOCAB, Sampling(temperature), set(range(N_VOCAB)))
    with pytest.raises(ArgumentError, match="found every token banned"):
        chain.sample(logits())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.8, top_k=0)])
def test_non_finite_logits(value: float, sampling: Sampling) -> None:
    row = logits()
    row[300] = value
    with pytest.raises(NonFiniteError):
        SamplerChain(N_VOCAB, sampling).sample(row)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature: found -1"),
        ({"temperature": math.nan}, "temperature: found nan"),
        ({"temperature": "hot"}, "temperature: found 'hot'"),
        ({"top_p": -0.1}, "top_p: found -0.1"),
        ({"min_p": 1.5}, "min_p: found 1.5"),
        ({"top_k": 1.5}, "top_k: found 1.5, wanted an integer"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed"),
        ({"repeat_penalty": 0.0}, "repeat_penalty: found 0"),
        ({"repeat_last_n": -2}, "repeat_last_n: found -2, wanted -1"),
        ({"presence_penalty": math.inf}, "presence_penalty: found inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty: found nan"),
        ({"logit_bias": {N_VOCAB: 1.0}}, r"id of logit_bias: found 500, wanted 0 .. 499"),
        ({"logit_bias": {-1: -math.inf}}, "id of logit_bias: found -1"),
        ({"logit_bias": {3: math.inf}}, "logit_bias of 3: found inf"),
        ({"logit_bias": {3: math.nan}}, "logit_bias of 3: found nan"),
        ({"logit_bias": {"3": 1.0}}, "id of logit_bias: found '3'"),
    ],
)
def test_parameters_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SamplerChain(N_VOCAB, Sampling(**options))


def test_banned_id_out_of_range() -> None:
    with pytest.raises(ArgumentError, match="banned: found 500, wanted 0 .. 499"):
        SamplerChain(N_VOCAB, Sampling(), {500})


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_probabilities(scale: float) -> None:
    row = (logits() * np.float32(scale)).astype(np.float32)
    exact = row.astype(np.longdouble)
    exact = exact - exact.max()
    exact -= np.log(np.exp(exact).sum())
    probs = token_probs(row, 11, 20)
    assert probs.token == 11
    np.testing.assert_allclose(probs.logprob, float(exact[11]), rtol=1e-12)
    order = np.argsort(-row, kind="stable")[:20].tolist()
    assert [token for token, _ in probs.top] == order
    np.testing.assert_allclose([p for _, p in probs.top], exact[order].astype(float), rtol=1e-12, atol=1e-15)
    assert all(math.isfinite(p) and p <= 0 for _, p in probs.top)
    # the same numbers as Python's own, so that JSON can hold them
    assert type(probs.logprob) is float and all(type(i) is int and type(p) is float for i, p in probs.top)


def test_probabilities_of_ties_and_of_a_banned_token() -> None:
    row = np.zeros(N_VOCAB, np.float32)
    assert [token for token, _ in token_probs(row, 0, 3).top] == [0, 1, 2]
    row[0] = NEVER
    assert math.isfinite(token_probs(row, 0, 0).logprob)
    assert token_probs(row, 0, 0).top == ()
    assert len(token_probs(row, 0, 10**6).top) == N_VOCAB
