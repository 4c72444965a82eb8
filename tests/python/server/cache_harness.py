"""A prefix cache driven as the engine does it, beside a context that reads every prompt from its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from llama_k3.server.engine.options import EngineOptions
from llama_k3.server.engine.prefix_cache import Placement, PrefixCache

from llama_k3 import Model

N_CTX, MIN_STEP, EVERY = 256, 8, 48
PLENTY = 1 << 30
RANDOM = np.random.default_rng(0)
TEXT = RANDOM.integers(1, 700, N_CTX).tolist()
OTHER = [700, *RANDOM.integers(1, 700, N_CTX - 1).tolist()]


@dataclass
class Harness:
    """A cache on a context, and a second context that reads every prompt from its start."""

    model: Model
    n_slots: int = 2
    cache_ram: int = PLENTY
    folder: Path | None = None
    disk_size: int = 1 << 28
    n_ubatch: int = 64
    busy: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        options = EngineOptions(
            n_ctx=N_CTX,
            n_parallel=self.n_slots,
            cache_ram=self.cache_ram,
            cache_disk=self.folder,
            cache_disk_size=self.disk_size,
            snapshot_min_step=MIN_STEP,
            snapshot_every=EVERY,
        )
        self.context = self.model.context(
            n_ctx=N_CTX,
            n_seq_max=self.n_slots,
            n_ubatch=self.n_ubatch,
            snapshot_every=0,
            snapshot_bytes=2**64 - 1,
        )
        self.fresh = self.model.context(n_ctx=N_CTX, n_ubatch=self.n_ubatch)
        self.cache = PrefixCache(self.context, options, self.model.info.digest)

    def close(self) -> None:
        self.cache.close()
        self.context.close()
        self.fresh.close()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    @property
    def checkpoint_bytes(self) -> int:
        memory = self.context.memory()
        return (memory.state + memory.window) // (2 * self.n_slots)

    @property
    def idle(self) -> set[int]:
        return set(range(self.n_slots)) - self.busy

    def place(self, prompt: Sequence[int], boundaries: Sequence[int] = (), **options: Any) -> Placement:
        placement = self.cache.place(prompt, boundaries, self.idle, self.busy, **options)
        self.busy.add(placement.slot)
        if placement.pending is not None:
            placement.pending.exception()
            placement = self.cache.finish(placement)
        self.check_budget()
        return placement

    def check_budget(self) -> None:
        assert self.cache.stats().ram_bytes <= self.cache_ram

    def read(self, placement: Placement, prompt: Sequence[int], upto: int | None = None) -> Any:
        """Read the prompt (up to a position), and check the logits behind it against a run from the start."""
        slot, position, logits = placement.slot, placement.n_cached, None
        assert position < len(prompt)
        assert self.context.tokens(slot) == list(prompt[:position])
        end = len(prompt) if upto is None else upto
        while position < end:
            stop = min(self.cache.next_stop(slot, position), end)
            logits = self.context.decode(prompt[position:stop], seq=slot)
            position = stop
            if position < len(prompt):
                self.cache.checkpoint(slot)
                self.check_budget()
        if logits is not None:
            self.fresh.clear()
            assert np.array_equal(logits, self.fresh.decode(prompt[:position]))
        return logits

    def generate(self, slot: int, logits: Any, count: int) -> list[int]:
        answer = []
        for _ in range(count):
            answer.append(int(logits[0].argmax()))
            logits = self.context.decode(answer[-1:], seq=slot)
        return answer

    def release(self, slot: int) -> None:
        self.busy.discard(slot)
        self.cache.release(slot)

    def run(
        self, prompt: Sequence[int], boundaries: Sequence[int] = (), answer: int = 3, **options: Any
    ) -> Placement:
        """A whole request."""
        placement = self.place(prompt, boundaries, **options)
        self.generate(placement.slot, self.read(placement, prompt), answer)
        self.release(placement.slot)
        return placement
