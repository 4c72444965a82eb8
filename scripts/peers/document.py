"""Writes what was measured into docs/performance.md: a section per model with tables, plots, raw samples."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from llama_k3.bench.plot import Series, draw
from llama_k3.bench.result import cpu_name, deviation
from llama_k3.model import available_cpus

from llama_k3 import __version__

from .llamacpp import VERSION
from .measure import OURS, ROOT, Ceiling, Measured, Point

TITLE = """\
# Performance

Written by `scripts/bench_peers.py`, which replaces the section of the model that it measured. ppN reads a
prompt of N tokens, tgN generates N tokens one by one, both behind `depth` tokens, which are not timed.
Figures are medians of all rounds with the deviation of a sample; the engines run in turn within each round.
Compare within a section only.
"""


def machine_text() -> str:
    """Where this runs, and what was compared."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    commit = _first_line("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    return (
        f"{cpu_name()}, {available_cpus()} cores, {memory / 2**30:.0f} GiB, {platform.platform()}; "
        f"{_first_line('cc', '--version')}; llama-k3 {__version__} ({commit}), "
        f"llama.cpp b{VERSION.split('.')[0]}, built natively"
    )


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip()


def write(name: str, measured: Measured, document: Path) -> None:
    """Put the section `name` into the document, its plots and samples into a folder of the same name."""
    folder = document.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(measured.to_json(), indent=1) + "\n")
    plots = []
    for prefix, what in (("tg", "decode"), ("pp", "prefill")):
        series = series_of([point for point in measured.points if point.kind.startswith(prefix)])
        if series:
            path = folder / f"{name}-{what}.png"
            draw(path, series, f"{name}: {what}")
            plots.append(f"![{what} against depth]({folder.name}/{path.name})")
    text = section(name, measured, plots)
    old = document.read_text() if document.exists() else TITLE
    document.write_text(replace_section(old, name, text))


def replace_section(document: str, name: str, text: str) -> str:
    """The document with the section in its old place, or at the end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    block = f"{begin}\n{text.strip()}\n{end}"
    found = re.search(re.escape(begin) + ".*?" + re.escape(end), document, re.DOTALL)
    if found:
        return document[: found.start()] + block + document[found.end() :]
    return f"{document.rstrip()}\n\n{block}\n"


def section(name: str, measured: Measured, plots: Sequence[str]) -> str:
    parts = [f"## {name}", measured.about, measured.machine, ceilings_text(measured.ceilings)]
    parts += [table(measured, ceiling) for ceiling in measured.ceilings]
    parts += plots
    commands = [command for engine in measured.commands.values() for command in engine]
    parts.append("\n".join(f"    {command}" for command in commands))
    parts.append(f"Samples: `{name}.json` in the same folder as the plots.")
    return "\n\n".join(part for part in parts if part)


def ceilings_text(ceilings: Sequence[Ceiling]) -> str:
    """What the machine could do in the same run."""
    rows = ["| threads | memory read, GB/s | F32 multiply-add, GFLOP/s |", "|---:|---:|---:|"]
    rows += [f"| {c.threads} | {c.read_gb_s:.1f} | {c.fma_gflop_s:.0f} |" for c in ceilings]
    return "\n".join(rows)


def table(measured: Measured, ceiling: Ceiling) -> str:
    """One row per test, one column per engine; for generation also the memory traffic beside the ceiling."""
    points = [point for point in measured.points if point.threads == ceiling.threads]
    engines = list(dict.fromkeys(point.engine for point in points))
    others = [engine for engine in engines if engine != OURS]
    head = ["test", "depth", *(f"{engine} t/s" for engine in engines)]
    head += [f"against {engine}" for engine in others]
    head += [f"{OURS} GB/s", "of memory read"]
    rows = [f"With {ceiling.threads} thread{'s' if ceiling.threads > 1 else ''}:", ""]
    rows += ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    by_test: dict[tuple[str, int], dict[str, Point]] = {}
    for point in points:
        by_test.setdefault((point.kind, point.depth), {})[point.engine] = point
    for (kind, depth), found in sorted(by_test.items(), key=lambda item: (item[0][0][:2], item[0][1])):
        rows.append("| " + " | ".join([kind, str(depth), *_cells(found, engines, others, ceiling)]) + " |")
    return "\n".join(rows)


def _cells(
    found: dict[str, Point], engines: Sequence[str], others: Sequence[str], limit: Ceiling
) -> list[str]:
    rates = {engine: statistics.median(point.samples) for engine, point in found.items()}
    cells = []
    for engine in engines:
        spread = f" ± {deviation(found[engine].samples):.2f}" if engine in found else ""
        cells.append(f"{rates[engine]:.2f}{spread}" if engine in found else "-")
    both = [(OURS in rates and other in rates, other) for other in others]
    cells += [f"{rates[OURS] / rates[other]:.2f}x" if known else "-" for known, other in both]
    if OURS not in found or not found[OURS].kind.startswith("tg"):
        return [*cells, "", ""]
    moved = 1e-9 * found[OURS].bytes_per_token * rates[OURS]
    return [*cells, f"{moved:.1f}", f"{100 * moved / limit.read_gb_s:.0f} %"]


def series_of(points: Sequence[Point]) -> list[Series]:
    """A line per engine and number of threads."""
    lines: dict[tuple[str, int, str], list[Point]] = {}
    for point in points:
        lines.setdefault((point.engine, point.threads, point.kind), []).append(point)
    found = []
    for (engine, threads, kind), members in lines.items():
        members = sorted(members, key=lambda point: point.depth)
        rates = [statistics.median(point.samples) for point in members]
        found.append(
            Series(
                f"{engine} {kind}, {threads} thread{'s' if threads > 1 else ''}",
                [point.depth for point in members],
                rates,
                [deviation(point.samples) for point in members],
                [1e3 / rate for rate in rates],
            )
        )
    return found
