"""python scripts/make_bench_model.py KIND --outfile X.gguf: see `--help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from .shapes import MODELS
from .writer import BenchModel, lay_out, write_model

_DESCRIPTION = """\
Write a random model to measure speed with. It loads in llama-k3 and in llama.cpp, and says nothing sensible.

  k3-mid             Kimi-K3 with small widths: 12 layers of 1024, 64 experts, 677 M parameters
  k3-slice           the real Kimi-K3's first four layers at their true widths, 32 experts of 896
  kimi-linear-slice  the real Kimi-Linear's first four layers at their true widths, 64 experts of 256
"""


def summary(model: BenchModel) -> str:
    return (
        f"{model.n_params / 1e6:,.1f} M parameters, {model.nbytes / 2**20:,.1f} MiB, "
        f"{model.bytes_per_token / 1e6:,.1f} MB read per token"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit status 0, or 1 for a file that cannot be written."""
    parser = argparse.ArgumentParser(
        "make_bench_model.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=list(MODELS))
    parser.add_argument("--outfile", required=True, type=Path, metavar="FILE")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the weights (%(default)s)")
    parser.add_argument(
        "--trunk", choices=("q8_0", "bf16"), default="q8_0", help="type outside the experts (%(default)s)"
    )
    parser.add_argument(
        "--experts", choices=("mxfp4", "q8_0"), default="mxfp4", help="type of the experts (%(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say the sizes and write nothing")
    args = parser.parse_args(argv)
    if args.seed < 0:
        parser.error(f"--seed: found {args.seed}, wanted 0 or more")
    model = lay_out(MODELS[args.kind], f"llama-k3 {args.kind}", args.trunk, args.experts)
    print(f"{args.kind}: {summary(model)}")
    if args.dry_run:
        return 0
    try:
        with tqdm(total=model.nbytes, unit="B", unit_scale=True, disable=None) as bar:
            write_model(model, args.outfile, args.seed, lambda nbytes: bar.update(nbytes) and None)
    except OSError as error:
        print(f"error: {args.outfile}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
