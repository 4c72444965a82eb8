"""Thousands of random operations on one context against the simplest model of it.

The model of a sequence is its tokens and the positions that `truncate` can go back to. The logits wanted are
those of the float64 reference over the whole text, so that every earlier mistake shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import llama_k3
from llama_k3 import Model, Snapshot
from tests.compare import assert_close
from tests.reference import separated_tokens
from tests.runtime.conftest import Case
from tests.runtime.test_context import POISONED_TOKEN, poisoned

EXACT = 2e-4
N_CTX, N_SEQ, N_UBATCH, EVERY = 40, 4, 5, 8
N_TEXTS, N_KEPT = 3, 4
STEPS = 800

Texts = tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]


class Stop(Exception):
    """Raised by the progress function."""


@dataclass(frozen=True)
class Mark:
    """A snapshot for `truncate`; a copied sequence shares it."""

    serial: int
    position: int


@dataclass(frozen=True)
class Timeline:
    """A sequence holds the first `position` tokens of a text."""

    text: int = 0
    position: int = 0
    marks: tuple[Mark, ...] = ()


@dataclass
class Machine:
    """The context under test beside its model, and the operations on both."""

    context: llama_k3.Context
    texts: list[NDArray[np.int64]]
    logits: list[NDArray[np.float64]]
    random: np.random.Generator
    folder: Path
    budget: int  # marks that the context keeps
    mark_bytes: int
    sequences: list[Timeline] = field(default_factory=lambda: [Timeline()] * N_SEQ)
    kept: list[tuple[Snapshot, Timeline]] = field(default_factory=list)
    saved: dict[Path, Timeline] = field(default_factory=dict)
    serial: int = 0
    stop_at: int | None = None  # tokens done at which the progress function raises
    counts: dict[str, int] = field(default_factory=dict)

    # ---- the model -------------------------------------------------------------------------------------

    def mark(self, seq: int, position: int) -> None:
        """The oldest marks of the context make room for a new one."""
        if self.budget == 0:
            return
        while len({mark.serial for line in self.sequences for mark in line.marks}) >= self.budget:
            oldest = min(mark.serial for line in self.sequences for mark in line.marks)
            for other, line in enumerate(self.sequences):
                left = tuple(mark for mark in line.marks if mark.serial != oldest)
                self.sequences[other] = replace(line, marks=left)
        line = self.sequences[seq]
        self.sequences[seq] = replace(line, marks=(*line.marks, Mark(self.serial, position)))
        self.serial += 1

    def mark_present(self, seq: int) -> None:
        line = self.sequences[seq]
        if line.position and (not line.marks or line.marks[-1].position != line.position):
            self.mark(seq, line.position)

    def advance(self, order: list[int]) -> None:
        """One micro-batch with a token for each entry of `order`."""
        for seq in dict.fromkeys(order):
            line, count = self.sequences[seq], order.count(seq)
            self.sequences[seq] = replace(line, position=line.position + count)
        for seq in dict.fromkeys(order):
            end, count = self.sequences[seq].position, order.count(seq)
            if count > 1 and (end - count) // EVERY != end // EVERY:
                self.mark_present(seq)

    # ---- operations ------------------------------------------------------------------------------------

    def any_seq(self) -> int:
        return int(self.random.integers(N_SEQ))

    def batch(self, length: int) -> list[int]:
        """Sequences of a batch, in random order, none of them overfull; empty ones may begin another text."""
        chosen = self.random.permutation(N_SEQ)[: self.random.integers(1, N_SEQ + 1)]
        for seq in chosen:
            if self.sequences[seq].position == 0:
                self.sequences[seq] = Timeline(int(self.random.integers(N_TEXTS)))
        order = [int(self.random.choice(chosen)) for _ in range(length)]
        room = [N_CTX - line.position for line in self.sequences]
        return [seq for place, seq in enumerate(order) if order[: place + 1].count(seq) <= room[seq]]

    def items(self, order: list[int]) -> tuple[list[tuple[int, int, bool]], list[NDArray[np.float64]]]:
        """What to decode, and the logits wanted."""
        reached = [line.position for line in self.sequences]
        items, rows = [], []
        for seq in order:
            text, want = self.sequences[seq].text, bool(self.random.random() < 0.5)
            items.append((int(self.texts[text][reached[seq]]), seq, want))
            if want:
                rows.append(self.logits[text][reached[seq]])
            reached[seq] += 1
        return items, rows

    def decode(self) -> None:
        order = self.batch(int(self.random.integers(1, 14)))
        if order:
            items, rows = self.items(order)
            found = self.context.decode_batch(items)
            for first in range(0, len(order), N_UBATCH):
                self.advance(order[first : first + N_UBATCH])
            assert_close(found, np.reshape(rows, found.shape), max_abs=EXACT)

    def decode_one_sequence(self) -> None:
        order = self.batch(1)
        if order:
            (token, seq, _), line = self.items(order)[0][0], self.sequences[order[0]]
            found = self.context.decode([token], seq)
            self.advance([seq])
            assert_close(found[0], self.logits[line.text][line.position], max_abs=EXACT)

    def decode_stopped(self) -> None:
        """The micro-batches before the stop count, the others do not."""
        order = self.batch(14)
        if len(order) > N_UBATCH:
            self.stop_at = N_UBATCH * int(self.random.integers(1, (len(order) - 1) // N_UBATCH + 1))
            with pytest.raises(Stop):
                self.context.decode_batch(self.items(order)[0])
            for first in range(0, self.stop_at, N_UBATCH):
                self.advance(order[first : first + N_UBATCH])
            self.stop_at = None

    def decode_poisoned(self) -> None:
        """The sequence with a logit that is not finite is cleared; its micro-batch is the last one."""
        order = self.batch(int(self.random.integers(1, 8)))
        if order:
            bad = int(self.random.integers(len(order)))
            items = self.items(order)[0]
            items[bad] = (POISONED_TOKEN, order[bad], True)
            # Later logits of the sequence are not finite either; earlier ones in this call are never seen.
            with pytest.raises(llama_k3.NonFiniteError, match=f"sequence {order[bad]}:"):
                self.context.decode_batch(items)
            for first in range(0, bad + 1, N_UBATCH):
                if first + N_UBATCH > bad:
                    self.advance_and_clear(order[first : first + N_UBATCH], order[bad])
                else:
                    self.advance(order[first : first + N_UBATCH])

    def advance_and_clear(self, order: list[int], bad: int) -> None:
        """No marks are set in a micro-batch that failed."""
        for seq in dict.fromkeys(order):
            line = self.sequences[seq]
            self.sequences[seq] = replace(line, position=line.position + order.count(seq))
        self.sequences[bad] = Timeline()

    def refused(self) -> None:
        """Calls that fail as a whole: one token too many, a token that is none."""
        seq = self.any_seq()
        room = N_CTX - self.sequences[seq].position
        with pytest.raises(llama_k3.ContextFullError):
            self.context.decode_batch([(1, self.any_seq(), True), *[(1, seq, False)] * (room + 1)])
        with pytest.raises(llama_k3.ArgumentError):
            self.context.decode_batch([(1, seq, True), (self.context.n_vocab, seq, True)])
        with pytest.raises(llama_k3.ArgumentError):
            self.context.truncate(seq, self.sequences[seq].position + 1)

    def truncate(self) -> None:
        seq = self.any_seq()
        line = self.sequences[seq]
        position = int(self.random.integers(line.position + 1))
        if position < line.position:
            marks = tuple(mark for mark in line.marks if mark.position <= position)
            line = replace(line, position=marks[-1].position if marks else 0, marks=marks)
        assert self.context.truncate(seq, position) == line.position
        self.sequences[seq] = line

    def snapshot(self) -> None:
        seq = self.any_seq()
        snapshot = self.context.snapshot(seq)
        self.mark_present(seq)
        assert snapshot.position == self.sequences[seq].position
        self.kept = [*self.kept, (snapshot, replace(self.sequences[seq], marks=()))][-N_KEPT:]

    def restore(self) -> None:
        if self.kept:
            snapshot, line = self.kept[self.random.integers(len(self.kept))]
            seq = self.any_seq()
            self.context.restore(seq, snapshot)
            self.sequences[seq] = line
            self.mark_present(seq)

    def copy(self) -> None:
        src, dst = self.any_seq(), self.any_seq()
        self.context.copy(src, dst)
        self.sequences[dst] = self.sequences[src]

    def clear(self) -> None:
        seq = self.any_seq()
        self.context.clear(seq)
        self.sequences[seq] = Timeline()

    def save(self) -> None:
        seq, path = self.any_seq(), self.folder / str(self.random.integers(N_KEPT))
        self.context.save(seq, path)
        self.saved[path] = self.sequences[seq]

    def load(self) -> None:
        if self.saved:
            path = sorted(self.saved)[self.random.integers(len(self.saved))]
            seq, line = self.any_seq(), self.saved[path]
            self.context.load(seq, path)
            self.sequences[seq] = replace(line, marks=())
            for mark in line.marks:
                self.mark(seq, mark.position)
            self.mark_present(seq)

    # ---- the run ---------------------------------------------------------------------------------------

    def progress(self, done: int, wanted: int) -> None:
        if done == self.stop_at:
            raise Stop

    def check(self) -> None:
        for seq, line in enumerate(self.sequences):
            assert self.context.position(seq) == line.position
            assert self.context.tokens(seq) == self.texts[line.text][: line.position].tolist()
        memory = self.context.memory()
        marks = {mark.serial for line in self.sequences for mark in line.marks}
        assert memory.snapshots == len(marks) * self.mark_bytes
        row_bytes = memory.latent // (N_CTX * N_SEQ)
        assert memory.latent_used == sum(line.position for line in self.sequences) * row_bytes

    def step(self) -> None:
        often = [self.decode] * 6 + [self.decode_one_sequence] * 2 + [self.truncate, self.snapshot] * 2
        rare = [self.decode_stopped, self.decode_poisoned, self.restore, self.copy, self.clear, self.save]
        operations = [*often, *rare, self.load, self.refused]
        operation = operations[self.random.integers(len(operations))]
        self.counts[operation.__name__] = self.counts.get(operation.__name__, 0) + 1
        operation()
        self.check()


@pytest.fixture(scope="module")
def texts(exact: Case) -> Texts:
    """Texts without the poisoned token, and the logits after each of their tokens."""
    found: list[NDArray[np.int64]] = []
    seed = 100
    while len(found) < N_TEXTS:
        tokens = separated_tokens(exact.reference, N_CTX, seed)
        seed += 1
        if POISONED_TOKEN not in tokens:
            found.append(tokens)
    return found, [exact.reference.forward(tokens) for tokens in found]


@pytest.fixture
def poisoned_model(exact: Case, tmp_path: Path) -> Iterator[Model]:
    path = poisoned(exact.gguf, tmp_path / "nan.gguf", "token_embd.weight")
    with Model(path, n_threads=1) as model:
        yield model


@pytest.mark.parametrize("budget", [0, 3, 1000])
def test_random_operations(poisoned_model: Model, texts: Texts, tmp_path: Path, budget: int) -> None:
    """`budget`: none of the snapshots for `truncate` fits, three do, all do."""
    hook: list[Machine] = []
    estimate = poisoned_model.memory(n_ctx=N_CTX, n_seq_max=1, kv_type="f32", n_ubatch=N_UBATCH)
    mark_bytes = (estimate.state + estimate.window) // 2
    with poisoned_model.context(
        n_ctx=N_CTX,
        n_seq_max=N_SEQ,
        kv_type="f32",
        n_ubatch=N_UBATCH,
        snapshot_every=EVERY,
        snapshot_bytes=budget * mark_bytes + mark_bytes // 2,
        progress=lambda done, wanted: hook[0].progress(done, wanted),
    ) as context:
        random = np.random.default_rng(budget)
        machine = Machine(context, texts[0], texts[1], random, tmp_path, budget, mark_bytes)
        hook.append(machine)
        for _ in range(STEPS):
            machine.step()
    assert len(machine.counts) == 12
