"""Runs the engines in turn and collects their samples; each is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS, LLAMA_CPP, XLLAMACPP = "llama-k3", "llama.cpp", "xllamacpp"


@dataclass(frozen=True)
class Plan:
    """What is run. `depths`: by engine, since some are too slow for the deepest."""

    model: Path
    threads: Sequence[int]
    n_prompt: int
    n_gen: int
    depths: dict[str, Sequence[int]]
    rounds: int


@dataclass
class Point:
    """All samples of one test of one engine, in tokens per second. `bytes_per_token`: 0 where not known."""

    engine: str
    threads: int
    kind: str
    depth: int
    samples: list[float] = field(default_factory=list)
    bytes_per_token: int = 0


@dataclass
class Ceiling:
    """What the machine can do with `threads` threads."""

    threads: int
    read_gb_s: float
    fma_gflop_s: float


@dataclass
class Measured:
    """A whole run. `about`, `machine`: text for readers."""

    about: str
    machine: str
    points: list[Point]
    ceilings: list[Ceiling]
    commands: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Measured:
        return Measured(
            values["about"],
            values["machine"],
            [Point(**point) for point in values["points"]],
            [Ceiling(**ceiling) for ceiling in values["ceilings"]],
            values["commands"],
        )


def build_ceilings(folder: Path) -> Path:
    """The program of scripts/kernels/ceilings.c."""
    folder.mkdir(parents=True, exist_ok=True)
    program, source = folder / "ceilings", ROOT / "scripts" / "kernels" / "ceilings.c"
    flags = ["-O3", "-march=native", "-std=gnu11", "-pthread"]
    subprocess.run(["cc", *flags, str(source), "-o", str(program)], check=True)
    return program


def run_all(plan: Plan, engines: dict[str, list[str]], ceilings: Path, about: str, machine: str) -> Measured:
    """Rounds of: each thread count, each engine after the other. Ceilings are taken in every round."""
    points: dict[tuple[str, int, str, int], Point] = {}
    limits: dict[int, list[dict[str, float]]] = {}
    commands: dict[str, list[str]] = {}
    for number in range(plan.rounds):
        for threads in plan.threads:
            limits.setdefault(threads, []).append(json.loads(_output([str(ceilings), str(threads)])))
            for engine, program in engines.items():
                command = bench_command(plan, engine, program, threads)
                commands.setdefault(engine, []).extend([] if number else [_shown(command)])
                print(f"round {number + 1}/{plan.rounds}: {_shown(command)}", file=sys.stderr, flush=True)
                add_samples(points, engine, json.loads(_output(command)))
    found = [
        Ceiling(threads, _median(rounds, "read_gb_s"), _median(rounds, "fma_gflop_s"))
        for threads, rounds in limits.items()
    ]
    return Measured(about, machine, list(points.values()), found, commands)


def bench_command(plan: Plan, engine: str, program: Sequence[str], threads: int) -> list[str]:
    """One repetition a process: the rounds repeat."""
    depths = ",".join(map(str, plan.depths[engine]))
    tests = ["-p", str(plan.n_prompt), "-n", str(plan.n_gen), "-d", depths]
    return [*program, "-m", str(plan.model), *tests, "-t", str(threads), "-r", "1", "-o", "json"]


def add_samples(
    points: dict[tuple[str, int, str, int], Point], engine: str, results: Sequence[dict[str, Any]]
) -> None:
    """Take over llama-bench's JSON, which is the same for both."""
    for result in results:
        prompt, answer, depth, threads = (
            int(result[name]) for name in ("n_prompt", "n_gen", "n_depth", "n_threads")
        )
        kind = f"tg{answer}" if answer else f"pp{prompt}"
        key = (engine, threads, kind, depth)
        point = points.setdefault(key, Point(engine, threads, kind, depth))
        point.samples += [float(value) for value in result["samples_ts"]]
        point.bytes_per_token = int(result.get("bytes_per_token", 0))


def _median(rounds: Sequence[dict[str, float]], name: str) -> float:
    values = sorted(values[name] for values in rounds)
    return values[len(values) // 2]


def _output(command: Sequence[str]) -> str:
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(ROOT)) if path]  # finds scripts.peers
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise OSError(f"{command[0]}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _shown(command: Sequence[str]) -> str:
    """With paths from the repository's root, and our command by its name."""
    text = " ".join(command).replace(f"{sys.executable} -m llama_k3.cli.bench", "llama-bench")
    return text.replace(f"{ROOT}/", "")
