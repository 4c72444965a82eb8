"""Train, export and measure a tiny Kimi-K3 that chats in K3's XTML format.

    python scripts/train_tiny.py train --out RUN                 (75 minutes by default, two cores)
    python scripts/train_tiny.py export RUN CHECKPOINT
    python scripts/train_tiny.py evaluate CHECKPOINT             (exact answers per task)
    python scripts/train_tiny.py ablate CHECKPOINT               (what the routed experts carry)

A run measures itself and saves every 500 steps; `--init` goes on from any of them, or from an exported
checkpoint. The shipped one (tests/data/tiny-k3) took four runs in a row, each `--init` from the one before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .bpe import Tokenizer
from .config import TinyConfig
from .dialogues import EFFORTS, TASKS
from .evaluate import ABLATIONS, accuracies
from .export import load_hf, save_hf
from .trainer import TrainOptions, load_run, train


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_train(commands.add_parser("train", help="train from scratch, or go on from a run or checkpoint"))
    export = commands.add_parser(
        "export", help="write a run's last weights as an HF checkpoint in K3's layout"
    )
    export.add_argument("run", type=Path, help="directory of a training run")
    export.add_argument("checkpoint", type=Path, help="directory to write")
    for name, text in (
        ("evaluate", "exact-match accuracy per task on unseen instances"),
        ("ablate", "accuracy with the routed experts removed or exchanged"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("checkpoint", type=Path, help="exported HF checkpoint; computed in fp32")
        command.add_argument("--seed", default="4242", help="seed of the instances (default 4242)")
        command.add_argument("-n", type=int, default=100, help="instances per task (default 100)")
        command.add_argument(
            "--mode",
            choices=("mixed", *EFFORTS),
            default="mixed",
            help="thinking effort; `off` has no think channel, `mixed` (default) takes all in turn",
        )
    commands.choices["evaluate"].add_argument(
        "--show-failures", type=int, default=0, metavar="K", help="print up to K wrong answers"
    )
    return parser


def _add_train(parser: argparse.ArgumentParser) -> None:
    defaults = TrainOptions(Path())
    parser.add_argument("--out", type=Path, required=True, help="directory for log, tokenizer and checkpoint")
    parser.add_argument("--minutes", type=float, default=defaults.minutes, help="wall time (default 75)")
    parser.add_argument("--init", type=Path, help="run or exported checkpoint to go on from")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of weights and data (default 1)")
    parser.add_argument(
        "--processes", type=int, default=defaults.processes, help="processes of one thread each (default 2)"
    )
    parser.add_argument("--muon-lr", type=float, default=defaults.muon_lr, help="matrices (default 0.012)")
    parser.add_argument(
        "--adam-lr", type=float, default=defaults.adam_lr, help="other weights (default 0.003)"
    )
    parser.add_argument(
        "--decay", type=float, default=defaults.decay, help="last share of the time with falling rates (0.5)"
    )
    parser.add_argument(
        "--quantise-from",
        type=float,
        default=defaults.quantise_from,
        help="share of the time after which experts are computed as MXFP4 stores them (0.85)",
    )


def _run_train(arguments: argparse.Namespace) -> None:
    options = TrainOptions(
        out=arguments.out,
        minutes=arguments.minutes,
        init=arguments.init,
        seed=arguments.seed,
        processes=arguments.processes,
        muon_lr=arguments.muon_lr,
        adam_lr=arguments.adam_lr,
        decay=arguments.decay,
        quantise_from=arguments.quantise_from,
    )
    train(options, TinyConfig())


def _run_export(arguments: argparse.Namespace) -> None:
    save_hf(load_run(arguments.run), Tokenizer.load(arguments.run), arguments.checkpoint)
    for path in sorted(arguments.checkpoint.iterdir()):
        print(f"{path.stat().st_size:>10,} B  {path.name}")


def _efforts(mode: str) -> Sequence[str]:
    return EFFORTS if mode == "mixed" else (mode,)


def _print_table(arguments: argparse.Namespace, rows: dict[str, dict[str, float]]) -> None:
    """Tasks as lines, one column per variant, accuracies in percent."""
    print(f"% exact answers of {arguments.n} unseen instances, seed {arguments.seed}, mode {arguments.mode}")
    widths = [max(len(name), 6) for name in rows]
    print(f"{'task':<15}" + "".join(f"  {name:>{w}}" for name, w in zip(rows, widths, strict=True)))
    for task in [*TASKS, "mean"]:
        cells = [sum(r.values()) / len(r) if task == "mean" else r[task] for r in rows.values()]
        print(f"{task:<15}" + "".join(f"  {100 * c:>{w}.1f}" for c, w in zip(cells, widths, strict=True)))


def _run_evaluate(arguments: argparse.Namespace) -> None:
    model, tokenizer = load_hf(arguments.checkpoint), Tokenizer.load(arguments.checkpoint)
    rates, failures = accuracies(model, tokenizer, arguments.n, arguments.seed, _efforts(arguments.mode))
    _print_table(arguments, {"exact": rates})
    for failure in failures[: arguments.show_failures]:
        print(f"{failure.task}\n  wanted {failure.wanted}\n  found  {failure.found}")


def _run_ablate(arguments: argparse.Namespace) -> None:
    model, tokenizer = load_hf(arguments.checkpoint), Tokenizer.load(arguments.checkpoint)
    efforts = _efforts(arguments.mode)
    rows = {
        name: accuracies(change(model), tokenizer, arguments.n, arguments.seed, efforts)[0]
        for name, change in ABLATIONS.items()
    }
    _print_table(arguments, rows)


def main() -> int:
    """Entry point; returns the exit status."""
    arguments = _parser().parse_args()
    commands = {"train": _run_train, "export": _run_export, "evaluate": _run_evaluate, "ablate": _run_ablate}
    commands[arguments.command](arguments)
    return 0
