"""What a test gave: samples of time, and llama-bench's statistics of them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..model import Model
from .grid import BenchTest, Setup

_FILE_TYPES = {0: "all F32", 1: "F16", 7: "Q8_0", 32: "BF16", 38: "MXFP4 MoE"}


@dataclass(frozen=True)
class Machine:
    cpu: str
    """Name of the processor."""


@dataclass(frozen=True)
class ModelFacts:
    """What a report says about a model. `size`: bytes of its tensors."""

    description: str
    size: int
    n_params: int


@dataclass(frozen=True)
class Result:
    """Times of one test, a sample per repetition: of the prompt and of the generation apart, in ns.

    `kinds`: milliseconds per token by kind of layer; empty where they were not asked for.
    `bytes_per_token`: weights, cache and state moved.
    """

    setup: Setup
    test: BenchTest
    model: ModelFacts
    time: str
    filled: bool
    prompt_ns: Sequence[int]
    gen_ns: Sequence[int]
    bytes_per_token: float
    kinds: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples_ns(self) -> list[int]:
        return [prompt + gen for prompt, gen in zip(self.prompt_ns, self.gen_ns, strict=True)]

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second."""
        return rates(self.test.n_tokens, self.samples_ns)

    @property
    def prompt_ts(self) -> list[float]:
        return rates(self.test.n_prompt, self.prompt_ns)

    @property
    def gen_ts(self) -> list[float]:
        return rates(self.test.n_gen, self.gen_ns)

    @property
    def ms_per_token(self) -> float:
        """Median."""
        return statistics.median(self.samples_ns) / self.test.n_tokens / 1e6


def rates(n_tokens: int, samples_ns: Sequence[int]) -> list[float]:
    """Tokens per second of each sample; none where there are no tokens."""
    return [1e9 * n_tokens / max(1, ns) for ns in samples_ns] if n_tokens else []


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Of the sample; 0 for a single one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def facts_of(model: Model) -> ModelFacts:
    info = model.info
    size = f"{info.n_params / 1e9:.1f}B" if info.n_params >= 1e9 else f"{info.n_params / 1e6:.0f}M"
    kind = _FILE_TYPES.get(model.metadata.get("general.file_type", -1), "")
    return ModelFacts(f"{info.architecture} {size} {kind}".strip(), info.n_bytes, info.n_params)


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As the system has it; the architecture where the system tells no more."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or os.name
