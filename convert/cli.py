"""Command line of the converter: options, the printed plan, the progress bar, exit codes.

Exit codes: 0 done, 1 refused (one line `error: ...` on stderr), 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from .checkpoint import Checkpoint
from .config import SHORT_CONV, HyperParameters, check_packing, read_config
from .errors import ConvertError, LayerKindError, MissingVocabError
from .header import Key
from .keys import model_keys
from .match import match_tensors
from .plan import EXPERT_TYPES, KEEP, OUT_TYPES, Plan, choose_types, file_type, lay_out
from .verify import verify_plan
from .vocab import tokenizer_keys
from .writer import Output

EXIT_REFUSED = 1
EXIT_STOPPED = 130
UNITS = {"M": 10**6, "G": 10**9}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parser().parse_args(arguments)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options)
    except ConvertError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except BrokenPipeError:
        # Whoever read the output has enough of it; Python must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED
    except OSError as error:
        print(f"error: {error.filename or 'file'}: {error.strerror or error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        print("stopped: the same command goes on with what is not written yet", file=sys.stderr)
        return EXIT_STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*unused: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convert-k3", description="Converts a Kimi-K3 or Kimi-Linear checkpoint to GGUF."
    )
    parser.add_argument("checkpoint", type=Path, help="folder with config.json and the safetensors shards")
    parser.add_argument("--outfile", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument(
        "--outtype", choices=list(OUT_TYPES), default="bf16", help="type of matrices outside the experts"
    )
    parser.add_argument(
        "--experts",
        choices=[KEEP, *EXPERT_TYPES],
        default=KEEP,
        help="type of the routed experts; keep repacks MXFP4 without loss",
    )
    parser.add_argument(
        "--split-max-size", type=_size, metavar="50G", help="cut into files of at most this much tensor data"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare every tensor of the output with its source; an output that exists is only compared",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan; works without the shards")
    return parser


def _size(value: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,9})([MG])", value)
    if not found:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number followed by M or G")
    return int(found[1]) * UNITS[found[2]]


def _run(options: argparse.Namespace) -> int:
    with Checkpoint(options.checkpoint, allow_absent_shards=options.dry_run) as checkpoint:
        hp = read_config(checkpoint.config)
        _report_layers(hp, refuse=not options.dry_run)
        plan = _make_plan(checkpoint, hp, options)
        if options.dry_run:
            _print_plan(plan, checkpoint)
            return 0
        exists = all(file.path.exists() for file in plan.files)
        if options.verify and exists:
            print(f"{options.outfile} exists: comparing it with the checkpoint, not writing it")
        else:
            _convert(plan, options.outfile, checkpoint)
        if options.verify:
            with _bar(plan.nbytes, 0, "verifying") as bar:
                count = verify_plan(plan, checkpoint, bar.update)
            print(f"verified {count} tensors")
    return 0


def _make_plan(checkpoint: Checkpoint, hp: HyperParameters, options: argparse.Namespace) -> Plan:
    matched = match_tensors(hp, checkpoint)
    if any(tensor.packed for tensor in matched):
        check_packing(checkpoint.config)
    tensors = choose_types(matched, options.outtype, options.experts)
    name = checkpoint.path.resolve().name
    keys = model_keys(hp, name, file_type(tensors, options.outtype))
    keys += _tokenizer_keys(checkpoint, hp, lenient=options.dry_run)
    return lay_out(hp, tensors, keys, options.outfile, options.split_max_size)


def _tokenizer_keys(checkpoint: Checkpoint, hp: HyperParameters, lenient: bool) -> list[Key]:
    try:
        return tokenizer_keys(checkpoint.path, checkpoint.config, hp.n_vocab, hp.is_k3)
    except MissingVocabError as error:
        if not lenient:
            raise
        print(f"note: {error}; the tokenizer's keys are not listed")
        return []


def _report_layers(hp: HyperParameters, refuse: bool) -> None:
    """Says which kinds the layers have; a layer in neither list cannot be converted."""
    counts = Counter(hp.layer_kinds)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{hp.arch}: {hp.n_layer} layers ({kinds}), {hp.n_layer_dense} of them dense")
    orphans = [layer for layer, kind in enumerate(hp.layer_kinds) if kind == SHORT_CONV]
    if not orphans:
        return
    numbers = ", ".join(f"{layer + 1}" for layer in orphans[:8])
    detail = f"{numbers} (counted from 1) of {hp.n_layer}, tagged {SHORT_CONV}"
    wanted = "each layer in full_attn_layers or kda_layers; the runtime has no such layer"
    if refuse:
        raise LayerKindError(detail, wanted=wanted)
    print(f"note: {LayerKindError(detail, wanted=wanted)}")


def _convert(plan: Plan, out: Path, checkpoint: Checkpoint) -> None:
    output = Output(plan, out, checkpoint)
    if output.stale_files:
        print(f"note: left by a stopped run of other options, not used: {', '.join(output.stale_files)}")
    print(f"needs {_show_bytes(output.needed_bytes)} in {output.folder.resolve()}", end="")
    if output.done_bytes:
        print(f" ({_show_bytes(output.done_bytes)} of {_show_bytes(plan.nbytes)} are there already)", end="")
    print(flush=True)
    print(f"free: {_show_bytes(output.check_space())}", flush=True)
    _print_fallbacks(plan)
    with _bar(plan.nbytes, output.done_bytes, "converting") as bar:
        output.write(bar.update)
    for file in plan.files:
        print(f"wrote {file.path} ({_show_bytes(file.nbytes)})")


def _print_fallbacks(plan: Plan) -> None:
    """Says which tensors do not get the type that was asked for, and why."""
    names: dict[str, list[str]] = {}
    for tensor in plan.tensors:
        if tensor.note:
            names.setdefault(f"{tensor.type.name}: {tensor.note}", []).append(tensor.name)
    for reason, affected in names.items():
        more = f" and {len(affected) - 1} more" if len(affected) > 1 else ""
        print(f"note: {affected[0]}{more} become {reason}")


def _bar(total: int, done: int, label: str) -> tqdm[None]:
    """A bar with rate and time left; in a log it moves every ten seconds only."""
    interval = 0.5 if sys.stderr.isatty() else 10.0
    return tqdm(total=total, initial=done, desc=label, unit="B", unit_scale=True, mininterval=interval)


def _print_plan(plan: Plan, checkpoint: Checkpoint) -> None:
    if checkpoint.absent_shards:
        print(
            f"note: {len(checkpoint.absent_shards)} shards are absent: shapes are what config.json asks "
            "for, types of plain tensors are taken to be BF16"
        )
    if checkpoint.skipped:
        print(f"skipped: {checkpoint.skipped} vision tensors")
    for file in plan.files:
        print(f"\n{file.path.name}: {len(file.tensors)} tensors, {_show_bytes(file.nbytes)}")
        for key in file.keys:
            print(f"  {key.show()}")
        for tensor in file.tensors:
            shape = "{" + ", ".join(map(str, tensor.ne)) + "}"
            note = f"  ({tensor.note})" if tensor.note else ""
            print(f"  {tensor.name:<36} {shape:<22} {tensor.type.name:<6} {tensor.nbytes:>14}{note}")
    counts = Counter(tensor.type.name for tensor in plan.tensors)
    types = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"\n{len(plan.tensors)} tensors ({types}), {plan.nbytes} bytes = {_show_bytes(plan.nbytes)}")


def _show_bytes(count: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
