"""Greedy answers with the prefix cache equal those of an engine without one, for any history of requests.

Random dialogues are begun, continued, edited, forked, repeated and cut, several at a time, so that every way
to reuse a sequence occurs, under budgets from ample to next to nothing.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from llama_k3.server.engine.engine import Engine
from llama_k3.server.engine.options import EngineOptions
from llama_k3.server.engine.prefix_cache import Placement
from llama_k3.server.engine.request import Request

from llama_k3 import Model

from .recorder import GREEDY, Recorder

N_CTX, N_ANSWER, BURST = 512, 8, 6
MIB = 1 << 20
OPTIONS = EngineOptions(n_ctx=N_CTX, n_parallel=4, n_ubatch=64, snapshot_min_step=16, snapshot_every=100)


@dataclass
class Dialogue:
    """Messages as token lists; the answers of the model are among them."""

    messages: list[list[int]] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        return [token for message in self.messages for token in message]

    @property
    def boundaries(self) -> list[int]:
        ends = [sum(len(m) for m in self.messages[: i + 1]) for i in range(len(self.messages))]
        return ends


class Client:
    """Makes the next request from what was answered before."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._systems = [self._text(20, 60) for _ in range(3)]
        self._dialogues: list[Dialogue] = []

    def _text(self, low: int, high: int) -> list[int]:
        return [self._rng.randrange(5, 700) for _ in range(self._rng.randint(low, high))]

    def next(self) -> Dialogue:
        rng = self._rng
        if len(self._dialogues) < 4 or rng.random() < 0.1:
            return Dialogue([rng.choice(self._systems), self._text(20, 80)])
        base = rng.choice(self._dialogues[-12:])
        messages = [message.copy() for message in base.messages]
        kind = rng.choice(
            ["continue"] * 4 + ["drop", "repeat", "regenerate", "edit", "middle", "cut", "retry"]
        )
        if kind in ("continue", "drop"):  # "drop": the client leaves out the beginning of the answer
            if kind == "drop":
                messages[-1] = messages[-1][rng.randrange(1, 5) :]
            messages.append(self._text(5, 40))
        elif kind in ("repeat", "regenerate"):
            messages = messages[:-1] if kind == "regenerate" or rng.random() < 0.5 else messages
        elif kind == "edit":
            at = rng.randrange(1, len(messages))
            messages = [*messages[:at], self._text(5, 60)]
        elif kind == "middle":  # go on within the answer
            messages[-1] = messages[-1][: rng.randrange(1, N_ANSWER)]
        elif kind == "cut":  # anywhere
            prompt = base.prompt
            messages = [prompt[: rng.randrange(1, len(prompt))]]
        else:  # another question in place of the last one
            messages = [*messages[:-2], self._text(5, 40)]
        dialogue = Dialogue([message for message in messages if message])
        return dialogue if len(dialogue.prompt) < N_CTX - 2 * N_ANSWER else self.next()

    def answered(self, dialogue: Dialogue, answer: list[int]) -> None:
        self._dialogues.append(Dialogue([*dialogue.messages, answer]))


def count_kinds(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each way to place a prompt is taken from now on."""
    kinds: Counter[str] = Counter()
    cache = engine._cache
    place, finish = cache.place, cache.finish

    def note(placement: Placement, busy: Collection[int]) -> Placement:
        reason = placement.reason
        source = re.search(r"copied from slot (\d+)", reason)
        if placement.pending is None:
            if source:
                kinds["copied from busy" if int(source[1]) in busy else "copied from idle"] += 1
            elif "in place" in reason:
                kinds["cut" if "cut at snapshot" in reason else "extended"] += 1
            else:
                kinds[next(k for k in ("from memory", "from disk", "miss", "cache off") if k in reason)] += 1
        return placement

    def noting_place(
        prompt: Sequence[int],
        boundaries: Sequence[int],
        idle: Collection[int],
        busy: Collection[int],
        *more: Any,
    ) -> Placement:
        return note(place(prompt, boundaries, idle, busy, *more), busy)

    monkeypatch.setattr(cache, "place", noting_place)
    monkeypatch.setattr(cache, "finish", lambda placement: note(finish(placement), ()))
    return kinds


def compare(engine: Engine, twin: Engine, n_requests: int, seed: int) -> int:
    """Send bursts of requests to both; the number of prompt tokens that were sent."""
    rng, client = random.Random(seed), Client(seed)
    known: dict[tuple[int, ...], list[int]] = {}
    n_tokens = 0
    for _ in range(n_requests // BURST):
        dialogues = [client.next() for _ in range(BURST)]
        dialogues[-1] = rng.choice(dialogues)  # the same one twice at the same time
        asked: list[tuple[Dialogue, Recorder]] = []
        last: Request | None = None
        for dialogue in dialogues:
            sink = Recorder()
            last = Request(
                dialogue.prompt,
                sink,
                GREEDY,
                max_tokens=N_ANSWER,
                boundaries=dialogue.boundaries if rng.random() < 0.9 else (),
                slot=rng.choice([None] * 9 + [0]),
                after=last if dialogue is dialogues[-1] else None,
            )
            engine.submit(last)
            asked.append((dialogue, sink))
        wanted: dict[tuple[int, ...], Recorder] = {}
        for dialogue in dialogues:
            key = tuple(dialogue.prompt)
            if key not in known and key not in wanted:
                wanted[key] = Recorder()
                twin.submit(Request(key, wanted[key], GREEDY, max_tokens=N_ANSWER, cache_prompt=False))
        for key, sink in wanted.items():
            assert sink.wait().reason == "limit"
            known[key] = sink.tokens
        for dialogue, sink in asked:
            result = sink.wait()
            assert result.reason == "limit"
            assert sink.tokens == known[tuple(dialogue.prompt)], (dialogue.boundaries, result)
            assert result.timings.cache_n + result.timings.prompt_n == result.n_prompt
            client.answered(dialogue, sink.tokens)
            n_tokens += result.n_prompt
    return n_tokens


@pytest.fixture(scope="module")
def twin(model: Model) -> Any:
    opened = Engine(model, replace(OPTIONS, n_parallel=BURST, cache_ram=0, n_ubatch=256))
    yield opened
    opened.close()


SMALL = {"extended", "cut", "copied from busy", "miss"}
CASES: dict[str, tuple[dict[str, Any], int, set[str], float]] = {
    "ample": ({}, 720, SMALL | {"from memory"}, 0.5),
    "tight": ({"cache_ram": 3 * MIB}, 480, SMALL | {"from memory"}, 0.3),
    "disk": ({"cache_ram": 4 * MIB, "cache_disk_size": 64 * MIB}, 480, SMALL | {"from disk"}, 0.3),
    "two slots": ({"cache_ram": MIB, "n_parallel": 2, "n_ubatch": 16}, 360, {"extended", "miss"}, 0.1),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_equal_those_without_a_cache(
    case: str, model: Model, twin: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, n_requests, wanted_kinds, wanted_share = CASES[case]
    options = replace(OPTIONS, **changes)
    if options.cache_disk_size:
        options = replace(options, cache_disk=tmp_path / "cache")
    engine = Engine(model, options)
    try:
        kinds = count_kinds(engine, monkeypatch)
        n_tokens = compare(engine, twin, n_requests, seed=len(case))
        stats = engine.stats()
        assert sum(kinds.values()) == n_requests
        assert {kind for kind, count in kinds.items() if count >= 3} >= wanted_kinds
        assert stats.cached_tokens >= wanted_share * n_tokens
        assert stats.cache_ram_bytes <= options.cache_ram
    finally:
        engine.close()


def test_number_of_requests() -> None:
    assert sum(case[1] for case in CASES.values()) >= 2000
