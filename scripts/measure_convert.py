"""Measures the converter against `cp` on a checkpoint with one Kimi-K3 MoE layer at true size.

    python scripts/measure_convert.py FOLDER [--experts 896] [--rounds 2]

FOLDER needs about 34 GB at 896 experts. The checkpoint is made of random bytes (codes) and random numbers,
with the real model's widths, one MLA layer and a vocabulary of 1024. Each round copies it with `cp`
and converts it, each time from the disk: the source's pages are dropped from the page cache first. Both are
timed until the written bytes are on the disk. Everything that was made is deleted again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "tests" / "data" / "tiny-k3"
HIDDEN, LATENT, INNER, SHARED = 7168, 3584, 3072, 6144
HEADS, HEAD, RANK, Q_RANK, ROPE = 96, 128, 512, 1536, 64
VOCAB = 1024
POOL_BYTES = 64 << 20
DTYPE_BYTES = {"U8": 1, "BF16": 2, "F32": 4}

Entry = tuple[str, str, tuple[int, ...]]  # name, dtype, shape


@dataclass(frozen=True)
class Measurement:
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def tensor_entries(n_expert: int) -> Iterator[Entry]:
    """All tensors in the order of the real shards: an expert's six tensors side by side."""
    layer = "language_model.model.layers.0."
    for expert in range(n_expert):
        for part, rows, cols in (("w1", INNER, LATENT), ("w2", LATENT, INNER), ("w3", INNER, LATENT)):
            stem = f"{layer}block_sparse_moe.experts.{expert}.{part}.weight"
            yield f"{stem}_packed", "U8", (rows, cols // 2)
            yield f"{stem}_scale", "U8", (rows, cols // 32)
    moe, attention, width = f"{layer}block_sparse_moe.", f"{layer}self_attn.", HEADS * HEAD
    matrices: list[tuple[str, tuple[int, ...]]] = [
        (f"{moe}gate", (n_expert, HIDDEN)),
        (f"{moe}routed_expert_down_proj", (LATENT, HIDDEN)),
        (f"{moe}routed_expert_norm", (LATENT,)),
        (f"{moe}routed_expert_up_proj", (HIDDEN, LATENT)),
        (f"{moe}shared_experts.gate_proj", (SHARED, HIDDEN)),
        (f"{moe}shared_experts.up_proj", (SHARED, HIDDEN)),
        (f"{moe}shared_experts.down_proj", (HIDDEN, SHARED)),
        (f"{attention}q_a_proj", (Q_RANK, HIDDEN)),
        (f"{attention}q_a_layernorm", (Q_RANK,)),
        (f"{attention}q_b_proj", (HEADS * (HEAD + ROPE), Q_RANK)),
        (f"{attention}kv_a_proj_with_mqa", (RANK + ROPE, HIDDEN)),
        (f"{attention}kv_a_layernorm", (RANK,)),
        (f"{attention}kv_b_proj", (HEADS * 2 * HEAD, RANK)),
        (f"{attention}g_proj", (width, HIDDEN)),
        (f"{attention}o_proj", (HIDDEN, width)),
        (f"{layer}input_layernorm", (HIDDEN,)),
        (f"{layer}post_attention_layernorm", (HIDDEN,)),
        (f"{layer}self_attention_res_norm", (HIDDEN,)),
        (f"{layer}self_attention_res_proj", (1, HIDDEN)),
        (f"{layer}mlp_res_norm", (HIDDEN,)),
        (f"{layer}mlp_res_proj", (1, HIDDEN)),
        ("language_model.model.embed_tokens", (VOCAB, HIDDEN)),
        ("language_model.lm_head", (VOCAB, HIDDEN)),
        ("language_model.model.norm", (HIDDEN,)),
        ("language_model.model.output_attn_res_norm", (HIDDEN,)),
        ("language_model.model.output_attn_res_proj", (1, HIDDEN)),
    ]
    yield from ((f"{name}.weight", "BF16", shape) for name, shape in matrices)
    yield f"{moe}gate.e_score_correction_bias", "F32", (n_expert,)


def make_checkpoint(folder: Path, n_expert: int) -> None:
    """Writes the checkpoint: one shard without index, config and tokenizer."""
    folder.mkdir(parents=True)
    config = json.loads((TOKENIZER / "config.json").read_text())
    linear = {"full_attn_layers": [1], "kda_layers": [], "num_heads": HEADS, "head_dim": HEAD}
    config["text_config"] |= {
        "hidden_size": HIDDEN, "num_hidden_layers": 1, "first_k_dense_replace": 0, "intermediate_size": 33792,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "q_lora_rank": Q_RANK,
        "kv_lora_rank": RANK, "qk_nope_head_dim": HEAD, "qk_rope_head_dim": ROPE, "v_head_dim": HEAD,
        "num_experts": n_expert, "moe_intermediate_size": INNER, "routed_expert_hidden_size": LATENT,
        "attn_res_block_size": 12,
    }  # fmt: skip
    config["text_config"]["linear_attn_config"] |= linear
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tiktoken.model", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TOKENIZER / name, folder / name)
    write_shard(folder / "model.safetensors", list(tensor_entries(n_expert)))


def write_shard(path: Path, entries: Sequence[Entry]) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(POOL_BYTES // 4, np.float32)
    pools = {
        "packed": rng.bytes(POOL_BYTES),
        "scale": rng.integers(110, 130, POOL_BYTES, np.uint8).tobytes(),
        "BF16": (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
        "F32": numbers.tobytes(),
    }
    header, position = {}, 0
    for name, dtype, shape in entries:
        nbytes = DTYPE_BYTES[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape in entries:
            pool = memoryview(pools[name.rsplit("_", 1)[-1] if dtype == "U8" else dtype])
            left = DTYPE_BYTES[dtype] * int(np.prod(shape))
            while left > 0:
                start = int(rng.integers(0, POOL_BYTES // 2)) & ~63
                left -= file.write(pool[start : start + min(left, POOL_BYTES // 2)])
        file.flush()
        os.fsync(file.fileno())


def drop_pages(folder: Path) -> None:
    """Takes a folder's files out of the page cache; they must be on the disk already."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(command: Sequence[str], output: Path) -> Measurement:
    """Runs a command until its output is on the disk; peak memory is the child's own."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(f"{command[0]} failed with status {status}")
    for path in [output] if output.is_file() else list(output.iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Measurement(time.monotonic() - start, cpu_seconds, usage.ru_maxrss * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="scratch folder; a subfolder is made in it and removed")
    parser.add_argument("--experts", type=int, default=896)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    scratch = options.folder / "measure-convert"
    source, copy, gguf = scratch / "checkpoint", scratch / "copy", scratch / "out.gguf"
    try:
        # In a process of its own: a child's peak memory starts from its parent's.
        maker = multiprocessing.Process(target=make_checkpoint, args=(source, options.experts))
        maker.start()
        maker.join()
        if maker.exitcode != 0:
            raise SystemExit("the checkpoint could not be made")
        nbytes = sum(path.stat().st_size for path in source.iterdir())
        print(f"{options.experts} experts, {nbytes / 1e9:.2f} GB\n")
        print(f"{'':<10}{'seconds':>10}{'GB/s':>8}{'CPU s':>8}{'peak MiB':>10}", flush=True)
        converter = [sys.executable, str(ROOT / "convert_k3.py"), str(source), "--outfile", str(gguf)]
        for _ in range(options.rounds):
            for label, command, output in (
                ("cp", ["cp", "-r", str(source), str(copy)], copy),
                ("convert", converter, gguf),
            ):
                drop_pages(source)
                result = measure(command, output)
                rate = nbytes / result.seconds / 1e9
                cells = f"{result.seconds:>10.1f}{rate:>8.2f}{result.cpu_seconds:>8.1f}"
                print(f"{label:<10}{cells}{result.peak_bytes / 2**20:>10.0f}", flush=True)
                shutil.rmtree(output) if output.is_dir() else output.unlink()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
