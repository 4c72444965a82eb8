"""python scripts/measure_accuracy.py MODEL.gguf: see `--help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from llama_k3 import LlamaK3Error

from .measure import (
    LLAMA_CPP,
    REFERENCE,
    Divergence,
    Engine,
    EngineError,
    divergence,
    logits,
    random_tokens,
    runnable_variants,
)

_DESCRIPTION = """\
Compare the logits of every form of the operations with those of the reference form: float32 activations,
float64 sums, F32 cache. Random tokens, the logits after each of them; each form and each set of
kernels in a process of its own. Prints a Markdown table: KL(reference || form) in nats over the positions,
the share of positions with the same likeliest token, and nmse of the logits (each row without its mean).
"""
DEFAULT_CACHE = "bf16"
COLUMNS = ("form", "cache", "mean KL and its standard error", "median KL", "largest KL", "same top-1", "nmse")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def engines(variants: Sequence[str], with_peer: bool) -> Iterator[Engine]:
    """Every kernel with the default cache, the best ones with each cache, the stock form, llama.cpp."""
    yield from (Engine("fast", variant, DEFAULT_CACHE) for variant in variants)
    yield from (Engine("fast", variants[0], cache) for cache in ("f32", "f16", "q8_0"))
    yield from (Engine("stock", "", cache) for cache in (DEFAULT_CACHE, "f16"))
    yield Engine(REFERENCE.form, "", DEFAULT_CACHE)
    if with_peer:
        yield from (Engine(LLAMA_CPP, "", cache) for cache in (DEFAULT_CACHE, "f16", "f32"))


def table_row(engine: Engine, found: Divergence) -> str:
    errors = " | ".join(f"{value:.2e}" for value in (found.median, found.largest))
    mean = f"{found.mean:.2e} ± {found.mean_error:.0e}"
    return f"| {engine.name} | {engine.cache} | {mean} | {errors} | {found.same_top:.1%} | {found.nmse:.2e} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit status 0, or 1 for a file or an engine that does not run."""
    parser = argparse.ArgumentParser(
        "measure_accuracy.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="positions (%(default)s)")
    parser.add_argument(
        "--length", type=int, metavar="N", help="tokens of one sequence; the next starts afresh (all)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the tokens (%(default)s)")
    parser.add_argument(
        "--peer", action="store_true", help="llama.cpp as well (xllamacpp, from this environment)"
    )
    args = parser.parse_args(argv)
    length = args.tokens if args.length is None else args.length
    if min(args.tokens, length) < 1 or args.seed < 0:
        parser.error("wanted --tokens and --length of at least 1, --seed of at least 0")
    try:
        tokens = random_tokens(args.model, args.tokens, args.seed)
        standard = logits(args.model, REFERENCE, tokens, length)
        print(HEAD, flush=True)
        for engine in engines(runnable_variants(args.model), args.peer):
            found = logits(args.model, engine, tokens, length)
            print(table_row(engine, divergence(standard, found)), flush=True)
    except (EngineError, LlamaK3Error) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
