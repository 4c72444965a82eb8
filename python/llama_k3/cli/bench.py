"""llama-bench: measure prompt and generation speed, with llama.cpp's flags, test names and reports."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..bench.grid import Grid, Setup, parse_integers, parse_pair
from ..bench.plot import MISSING, draw, series_of
from ..bench.report import FORMATS, make_report
from ..bench.result import Result
from ..bench.runner import Runner
from ..context import KV_TYPES
from ..errors import ArgumentError, LlamaK3Error
from ..model import Model, available_cpus

_DESCRIPTION = (
    "Measure the speed of a model. Every parameter takes several values: as a list 1,2,8, as a range "
    "first-last, first-last+step or first-last*factor, or by giving the flag again; every combination is "
    "measured. Tests are ppN (read a prompt of N tokens), tgN (generate N tokens, one by one) and ppN+tgM; "
    "`@ dN` is the depth, the tokens before, which are not timed. Sampling and tokenising are not timed."
)
_INTERRUPTED = 130

_DEFAULTS = Grid(
    models=(),
    n_prompt=(512,),
    n_gen=(128,),
    n_pg=(),
    n_depth=(0,),
    n_batch=(2048,),
    n_ubatch=(512,),
    type_k=("bf16",),
    n_threads=(available_cpus(),),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` as an argparse type: its ValueError becomes the message."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _at_least_one(text: str) -> list[int]:
    values = parse_integers(text)
    if min(values) < 1:
        raise ValueError("found 0, wanted at least 1")
    return values


def _cache_types(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in KV_TYPES:
            raise ValueError(f"found {name!r}, wanted {', '.join(KV_TYPES)}")
    return names


def _repetitions(text: str) -> int:
    values = _at_least_one(text)
    if len(values) != 1:
        raise ValueError(f"found {text!r}, wanted one number")
    return values[0]


def build_parser() -> argparse.ArgumentParser:
    """The flags, under llama.cpp's names, and ours: --fill, --by-layer-kind, --plot."""
    parser = _Parser("llama-bench", description=_DESCRIPTION, allow_abbrev=False)

    def many(*flags: str, dest: str, parse: Callable[[str], Any], metavar: str, text: str) -> None:
        parser.add_argument(
            *flags, dest=dest, action="extend", type=_checked(parse), metavar=metavar, help=text
        )

    parser.add_argument(
        "-m",
        "--model",
        dest="models",
        action="extend",
        type=lambda text: text.split(","),
        required=True,
        metavar="FILE",
        help="GGUF file (any part of a split model)",
    )
    integers = parse_integers
    many(
        "-p", "--n-prompt", dest="n_prompt", parse=integers, metavar="N", text="prompt tokens (512; 0: none)"
    )
    many("-n", "--n-gen", dest="n_gen", parse=integers, metavar="N", text="tokens to generate (128; 0: none)")
    many(
        "-pg",
        dest="n_pg",
        parse=lambda text: [parse_pair(text)],
        metavar="PP,TG",
        text="prompt, then generation; also timed apart",
    )
    many("-d", "--n-depth", dest="n_depth", parse=integers, metavar="N", text="tokens before, not timed (0)")
    many("-b", "--batch-size", dest="n_batch", parse=_at_least_one, metavar="N", text="tokens a call (2048)")
    many(
        "-ub",
        "--ubatch-size",
        dest="n_ubatch",
        parse=_at_least_one,
        metavar="N",
        text="tokens computed at once (512)",
    )
    many(
        "-ctk",
        "--cache-type-k",
        dest="type_k",
        parse=_cache_types,
        metavar="TYPE",
        text=f"type of the cache: {', '.join(KV_TYPES)} (bf16)",
    )
    many(
        "-t",
        "--threads",
        dest="n_threads",
        parse=_at_least_one,
        metavar="N",
        text=f"threads ({available_cpus()})",
    )
    add = parser.add_argument
    add("-r", "--repetitions", type=_checked(_repetitions), default=5, metavar="N", help="of each test (5)")
    add("-o", "--output", choices=FORMATS, default="md", help="format (md)")
    add("--fill", action="store_true", help="reach the depth at once, with random states and cache rows")
    add("--by-layer-kind", action="store_true", help="also ms per token by kind of layer")
    add("--plot", type=Path, metavar="FILE.png", help="draw t/s and ms per token against depth")
    add("--no-mmap", action="store_true", help="read the model into memory instead of mapping it")
    add("--no-warmup", action="store_true", help="no untimed run before each test")
    add("--progress", action="store_true", help="tell on standard error what runs")
    add("--version", action="version", version=f"llama-bench (llama-k3) {__version__}")
    return parser


def _grid(args: argparse.Namespace) -> Grid:
    """What was asked for, defaults where nothing was."""
    names = ("models", "n_prompt", "n_gen", "n_pg", "n_depth", "n_batch", "n_ubatch", "type_k", "n_threads")
    return Grid(**{name: tuple(getattr(args, name) or getattr(_DEFAULTS, name)) for name in names})


class _Progress:
    """llama-bench's lines: which test runs, and what of it."""

    def __init__(self, shown: bool, total: int) -> None:
        self._shown = shown
        self._total = total
        self._index = 0

    def next_test(self) -> None:
        self._index += 1
        self.note("starting")

    def note(self, text: str) -> None:
        if self._shown:
            print(f"llama-bench: benchmark {self._index}/{self._total}: {text}", file=sys.stderr, flush=True)


def _run(args: argparse.Namespace, grid: Grid) -> list[Result]:
    tests, setups = grid.tests(), list(grid.setups())
    progress = _Progress(args.progress, len(tests) * len(setups))
    report = make_report(args.output, sys.stdout, grid, _DEFAULTS, args.by_layer_kind)
    results: list[Result] = []
    model: Model | None = None
    opened: Setup | None = None
    try:
        for setup in setups:
            if model is None or opened is None or _needs_load(opened, setup):
                if model is not None:
                    model.close()
                model, opened = Model(setup.model, setup.n_threads, mmap=not args.no_mmap), setup
            if not results:
                report.begin()
            runner = Runner(
                model,
                setup,
                tests,
                args.repetitions,
                fill=args.fill,
                by_layer_kind=args.by_layer_kind,
                warm_up=not args.no_warmup,
                note=progress.note,
            )
            progress.next_test()
            for result in runner.run():
                results.append(result)
                report.add(result)
                if len(results) % len(tests):
                    progress.next_test()
    finally:
        if model is not None:
            model.close()
    report.end()
    return results


def _needs_load(opened: Setup, setup: Setup) -> bool:
    return (opened.model, opened.n_threads) != (setup.model, setup.n_threads)


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """What would otherwise only be found out after the measurement."""
    if args.plot is None:
        return
    if args.plot.suffix != ".png":
        parser.error(f"--plot: found {args.plot}, wanted a name that ends in .png")
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: no such folder: {args.plot.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error(f"--plot: {MISSING}")


def _plain(argument: str) -> str:
    """llama.cpp takes --n_gen for --n-gen."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command. Exit status: 0, 1 for an error, 2 for wrong flags, 130 for Ctrl-C."""
    parser = build_parser()
    args = parser.parse_args([_plain(text) for text in (sys.argv[1:] if argv is None else argv)])
    _check(parser, args)
    try:
        results = _run(args, _grid(args))
        if args.plot is not None and results:
            draw(args.plot, series_of(results), results[0].model.description)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ArgumentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (LlamaK3Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
