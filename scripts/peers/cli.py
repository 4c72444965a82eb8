"""python scripts/bench_peers.py MODEL.gguf: see `--help`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_k3.bench.grid import parse_integers
from llama_k3.model import available_cpus

from .document import machine_text, write
from .llamacpp import llama_bench
from .measure import LLAMA_CPP, OURS, ROOT, XLLAMACPP, Measured, Plan, build_ceilings, run_all

_DESCRIPTION = """\
Measure llama-k3 and llama.cpp on the same file and write docs/performance.md.

llama.cpp is built from its source package into build/peers first (about 7 minutes on two cores). Both engines
run their llama-bench in turn, round after round, each with its own defaults: BF16 cache rows here, F16 there
with flash attention on. The depth is reached by reading that many tokens; llama.cpp does it anew in every
round, which takes most of the time at large depths: --peer-depths leaves those out.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "bench_peers.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", type=Path, nargs="?", metavar="MODEL.gguf", help="for example of make_bench_model.py")
    add(
        "--engine",
        action="append",
        choices=(LLAMA_CPP, XLLAMACPP),
        help="to compare with; may be given twice (llama.cpp; xllamacpp is its AVX2 wheel)",
    )
    add("--name", metavar="NAME", help="of the section; by default the file's name")
    add("--about", default="", metavar="TEXT", help="first paragraph of the section")
    add("-p", type=int, default=512, metavar="N", help="prompt tokens (%(default)s)")
    add("-n", type=int, default=32, metavar="N", help="generated tokens (%(default)s)")
    add("-d", "--depths", type=parse_integers, default=[0], metavar="LIST", help="as of llama-bench (0)")
    add("--peer-depths", type=parse_integers, metavar="LIST", help="of the other engines, where not -d")
    add("-t", "--threads", type=parse_integers, default=[available_cpus()], metavar="LIST")
    add("--rounds", type=int, default=3, metavar="N", help="(%(default)s)")
    add("--fill", action="store_true", help="llama-k3 reaches its depths by filling")
    add("--no-mmap", action="store_true", help="both engines read the model into memory")
    add("-j", "--jobs", type=int, default=available_cpus(), metavar="N", help="of the build (%(default)s)")
    add("--document", type=Path, default=ROOT / "docs" / "performance.md", metavar="FILE.md")
    add("--build-only", action="store_true", help="build llama.cpp and stop")
    add("--redraw", action="store_true", help="write the section again from the stored samples")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit status 0, 1 for an error, 2 for wrong flags."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.model is None and not args.build_only:
        parser.error("MODEL.gguf is missing")
    if min(args.p, args.n, args.rounds, args.jobs, *args.threads) < 1:
        parser.error("-p, -n, -t, -j, --rounds: wanted at least 1")
    try:
        return _run(args)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    peers = ROOT / "build" / "peers"
    if args.build_only:
        print(llama_bench(peers, args.jobs))
        return 0
    name = args.name or args.model.stem
    if args.redraw:
        stored = json.loads((args.document.with_suffix("") / f"{name}.json").read_text())
        measured = Measured.from_json(stored)
    else:
        measured = _measure(args, peers)
    write(name, measured, args.document)
    print(args.document)
    return 0


def _measure(args: argparse.Namespace, peers: Path) -> Measured:
    if not args.model.is_file():
        raise FileNotFoundError(f"{args.model}: no such file")
    flags = [*(["--fill"] if args.fill else []), *(["--no-mmap"] if args.no_mmap else [])]
    engines = {OURS: [sys.executable, "-m", "llama_k3.cli.bench", *flags]}
    depths = {OURS: args.depths}
    for engine in args.engine or [LLAMA_CPP]:
        if engine == LLAMA_CPP:
            mode = ["-lm", "none"] if args.no_mmap else []
            engines[engine] = [str(llama_bench(peers, args.jobs)), "-fa", "on", *mode]
        else:
            engines[engine] = [sys.executable, "-m", "scripts.peers.xllamacpp_bench"]
        depths[engine] = args.peer_depths or args.depths
    plan = Plan(args.model, args.threads, args.p, args.n, depths, args.rounds)
    return run_all(plan, engines, build_ceilings(peers), args.about, machine_text())


if __name__ == "__main__":
    sys.exit(main())
