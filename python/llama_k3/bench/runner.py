"""Runs tests: brings a sequence to its depth, and times what comes after, prompt and generation apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..context import Context, Phase
from ..errors import ArgumentError
from ..model import Model
from .grid import BenchTest, Setup
from .result import Result, facts_of

Note = Callable[[str], None]
Ids = npt.NDArray[np.int64]

_SNAPSHOT_BUDGET = 1 << 30


class Depth:
    """Keeps one sequence at a wanted depth: by reading random tokens, or by filling it at once."""

    def __init__(self, context: Context, n_batch: int, tokens: Ids, fill: bool) -> None:
        """`tokens`: those of the sequence, from its start on, as many as the deepest test needs."""
        self._context = context
        self._n_batch = n_batch
        self._tokens = tokens
        self._fill = _fill_of(context) if fill else None
        self._marked = 0

    def go_to(self, depth: int) -> bool:
        """Set the sequence to its first `depth` tokens. True when that took more than going back."""
        if depth == 0:
            self._context.clear()
            return False
        if self._marked and self._return_to(min(depth, self._marked)) == depth:
            self._marked = depth
            return False
        if self._fill is not None:
            self._context.clear()
            self._fill(depth)
        else:
            read(self._context, self._tokens[self._context.position() : depth], self._n_batch)
        if self._context.position() != depth:
            raise ArgumentError(f"depth: found {self._context.position()} tokens, wanted {depth}")
        # `truncate` goes back to where a snapshot was taken; the copy itself is not needed.
        self._context.snapshot().close()
        self._marked = depth
        return True

    def _return_to(self, position: int) -> int:
        """The position reached: `position` where it is marked, 0 where all has to be read again."""
        if self._context.position() < position or self._context.truncate(0, position) != position:
            self._context.clear()
        return self._context.position()


def _fill_of(context: Context) -> Callable[[int], Any]:
    fill = getattr(context, "fill", None)
    if fill is None:
        raise ArgumentError("--fill: this build of llama_k3 has no Context.fill; leave the flag out")
    return lambda depth: fill(depth, seq=0, seed=0)


def read(context: Context, tokens: Ids, n_batch: int) -> None:
    """Append a prompt in calls of at most `n_batch` tokens."""
    for start in range(0, tokens.size, n_batch):
        context.decode(tokens[start : start + n_batch])


def generate(context: Context, tokens: Ids) -> None:
    """Append tokens one by one, each with its logits."""
    for index in range(tokens.size):
        context.decode(tokens[index : index + 1])


class Runner:
    """Measures all tests of one setup in one context, so that every depth has the same allocation."""

    def __init__(
        self,
        model: Model,
        setup: Setup,
        tests: Sequence[BenchTest],
        repetitions: int,
        fill: bool = False,
        by_layer_kind: bool = False,
        warm_up: bool = True,
        note: Note = lambda text: None,
    ) -> None:
        self._model = model
        self._setup = setup
        self._tests = tests
        self._repetitions = repetitions
        self._fill = fill
        self._by_layer_kind = by_layer_kind
        self._warm_up = warm_up
        self._note = note
        self._random = np.random.default_rng(0)

    def run(self) -> Iterator[Result]:
        """One result for each test, as soon as it is there."""
        n_ctx = max((test.n_depth + test.n_tokens for test in self._tests), default=0)
        if not n_ctx:
            return
        # Room for the mark of a depth and the one before it.
        per_sequence = self._model.memory(n_ctx=1, kv_type=self._setup.type_k, n_ubatch=1)
        budget = max(_SNAPSHOT_BUDGET, 2 * (per_sequence.state + per_sequence.window))
        with self._model.context(
            n_ctx=n_ctx,
            kv_type=self._setup.type_k,
            n_ubatch=self._setup.n_ubatch,
            snapshot_every=0,
            snapshot_bytes=budget,
        ) as context:
            if self._by_layer_kind:
                # A library that cannot count is found out before the work.
                ms_by_kind(context.counters().decode)
            deepest = max(test.n_depth for test in self._tests)
            depth = Depth(context, self._setup.n_batch, self._draw(deepest), self._fill)
            for test in self._tests:
                yield self._measure(context, depth, test)

    def _draw(self, count: int) -> Ids:
        return self._random.integers(0, self._model.n_vocab, count)

    def _measure(self, context: Context, depth: Depth, test: BenchTest) -> Result:
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if self._warm_up:
            self._note("warmup run")
            depth.go_to(test.n_depth)
            read(context, self._draw(min(test.n_prompt, self._setup.n_ubatch)), self._setup.n_batch)
            generate(context, self._draw(min(test.n_gen, 1)))
        prompt_ns, gen_ns = [], []
        context.reset_counters()
        for repetition in range(1, self._repetitions + 1):
            progress = f"{repetition}/{self._repetitions}"
            if test.n_depth:
                self._note(f"depth run {progress}")
            if depth.go_to(test.n_depth):
                context.reset_counters()
            prompt, answer = self._draw(test.n_prompt), self._draw(test.n_gen)
            if test.n_prompt:
                self._note(f"prompt run {progress}")
            start = time.perf_counter_ns()
            read(context, prompt, self._setup.n_batch)
            prompt_ns.append(time.perf_counter_ns() - start if test.n_prompt else 0)
            if test.n_gen:
                self._note(f"generation run {progress}")
            start = time.perf_counter_ns()
            generate(context, answer)
            gen_ns.append(time.perf_counter_ns() - start if test.n_gen else 0)
        counters = context.counters()
        phase = counters.decode if test.n_gen else counters.prefill
        return Result(
            setup=self._setup,
            test=test,
            model=facts_of(self._model),
            time=started,
            filled=self._fill and test.n_depth > 0,
            prompt_ns=prompt_ns,
            gen_ns=gen_ns,
            bytes_per_token=phase.bytes / max(1, phase.tokens),
            kinds=ms_by_kind(phase) if self._by_layer_kind else {},
        )


def ms_by_kind(phase: Phase) -> dict[str, float]:
    """Milliseconds per token of each kind of layer, from the library's counters."""
    kinds: Mapping[str, float] | None = getattr(phase, "kinds", None)
    if kinds is None:
        raise ArgumentError("--by-layer-kind: this build of llama_k3 does not count by kind of layer")
    return {name: ms / max(1, phase.tokens) for name, ms in kinds.items()}
