"""Plots of speed against depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .result import Result, deviation, mean

MISSING = "matplotlib is not installed: pip install matplotlib"


@dataclass(frozen=True)
class Series:
    """One line of the plot, a point per depth: tokens per second with deviation, milliseconds per token."""

    label: str
    depths: Sequence[int]
    rates: Sequence[float]
    deviations: Sequence[float]
    ms: Sequence[float]


def series_of(results: Sequence[Result]) -> list[Series]:
    """A line for each kind of test and setup; the label names what of the setup varies."""
    setups = {result.setup for result in results}
    varying = [name for name in ("model", "n_batch", "n_ubatch", "type_k", "n_threads")]
    varying = [name for name in varying if len({getattr(setup, name) for setup in setups}) > 1]
    lines: dict[str, list[Result]] = {}
    for result in results:
        parts = [result.test.kind, *(f"{name} {getattr(result.setup, name)}" for name in varying)]
        lines.setdefault(", ".join(parts), []).append(result)
    found = []
    for label, members in lines.items():
        members = sorted(members, key=lambda result: result.test.n_depth)
        found.append(
            Series(
                label,
                [result.test.n_depth for result in members],
                [mean(result.samples_ts) for result in members],
                [deviation(result.samples_ts) for result in members],
                [result.ms_per_token for result in members],
            )
        )
    return found


def draw(path: Path, series: Sequence[Series], title: str) -> None:
    """Write the two panels to a PNG. ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for line in series:
        left.errorbar(line.depths, line.rates, yerr=line.deviations, marker="o", capsize=3, label=line.label)
        right.plot(line.depths, line.ms, marker="o", label=line.label)
    for axes, name in ((left, "tokens per second"), (right, "milliseconds per token")):
        axes.set_xlabel("depth: tokens before")
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    left.legend()
    figure.suptitle(title)
    figure.savefig(path, format="png", dpi=120)
