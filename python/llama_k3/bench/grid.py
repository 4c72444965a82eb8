"""What is measured: the tests that a command line asks for, named and ordered as llama-bench does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")
_MAX = 2**31 - 1
# A range that runs away is a slip of the keyboard.
_MAX_VALUES = 10_000


@dataclass(frozen=True)
class Setup:
    """How a context is made; the tests of one setup share it."""

    model: str
    n_batch: int
    n_ubatch: int
    type_k: str
    n_threads: int


@dataclass(frozen=True)
class BenchTest:
    """Prompt tokens to read, then tokens to generate one by one, behind `n_depth` tokens not timed."""

    n_prompt: int
    n_gen: int
    n_depth: int

    @property
    def kind(self) -> str:
        """pp512, tg128 or pp512+tg128."""
        parts = [f"{name}{n}" for name, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n]
        return "+".join(parts)

    @property
    def name(self) -> str:
        """The kind, and the depth where there is one: `tg32 @ d65536`."""
        return f"{self.kind} @ d{self.n_depth}" if self.n_depth else self.kind

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_gen


@dataclass(frozen=True)
class Grid:
    """Values of every parameter; each combination is measured."""

    models: Sequence[str]
    n_prompt: Sequence[int]
    n_gen: Sequence[int]
    n_pg: Sequence[tuple[int, int]]
    n_depth: Sequence[int]
    n_batch: Sequence[int]
    n_ubatch: Sequence[int]
    type_k: Sequence[str]
    n_threads: Sequence[int]

    def setups(self) -> Iterator[Setup]:
        for model in self.models:
            for n_batch in self.n_batch:
                for n_ubatch in self.n_ubatch:
                    for type_k in self.type_k:
                        for n_threads in self.n_threads:
                            yield Setup(model, n_batch, n_ubatch, type_k, n_threads)

    def tests(self) -> list[BenchTest]:
        """Of every setup. Prompt and generation of 0 tokens ask for nothing."""
        found = []
        for depth in self.n_depth:
            found += [BenchTest(n, 0, depth) for n in self.n_prompt if n]
            found += [BenchTest(0, n, depth) for n in self.n_gen if n]
            found += [BenchTest(pp, tg, depth) for pp, tg in self.n_pg if pp or tg]
        return found


def parse_integers(text: str) -> list[int]:
    """`1,2,8`, ranges `a-b`, `a-b+step`, `a-b*factor`, and lists of these. ValueError for anything else."""
    values: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"found {part!r}, wanted N, A-B, A-B+STEP or A-B*FACTOR")
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[4] or 1)
        if max(first, last) > _MAX:
            raise ValueError(f"found {part}, wanted at most {_MAX}")
        if first > last:
            raise ValueError(f"found {part}, wanted a range that rises")
        while first <= last:
            values.append(first)
            if len(values) > _MAX_VALUES:
                raise ValueError(f"found more than {_MAX_VALUES} values in {text!r}")
            following = first * step if match[3] == "*" else first + step
            if following <= first:
                raise ValueError(f"found {part}, wanted a step that rises")
            first = following
    return values


def parse_pair(text: str) -> tuple[int, int]:
    """`512,128` -> (512, 128)."""
    match = re.fullmatch(r"(\d+),(\d+)", text)
    if not match or max(int(match[1]), int(match[2])) > _MAX:
        raise ValueError(f"found {text!r}, wanted PROMPT,GENERATE")
    return int(match[1]), int(match[2])
