"""Second opinion: the logits of mlx-lm for a checkpoint folder, in a process of its own.

    python mlx_logits.py CHECKPOINT TOKENS.npy OUT.npy [--prefill N]

TOKENS.npy holds int64 token ids [T], OUT.npy gets float32 logits [T, vocab]. With --prefill the first N
tokens go in at once and the others one by one through mlx-lm's cache.

All floating-point weights are cast to float32 after loading, so that the arithmetic is float32 on the very
numbers of the files (BF16 values are float32 values). Packed MXFP4 experts stay packed: mlx-lm multiplies by
them as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model


def logits(checkpoint: Path, tokens: np.ndarray, prefill: int | None) -> np.ndarray:
    model, _ = load_model(checkpoint, strict=True)
    model.set_dtype(mx.float32)
    ids = mx.array(tokens)[None]
    if prefill is None:
        return np.array(model(ids)[0].astype(mx.float32))
    cache = model.make_cache()
    parts = [model(ids[:, :prefill], cache)[0]]
    for position in range(prefill, len(tokens)):
        parts.append(model(ids[:, position : position + 1], cache)[0])
        mx.eval(parts[-1])
    return np.array(mx.concatenate(parts).astype(mx.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--prefill", type=int)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    np.save(args.out, logits(args.checkpoint, np.load(args.tokens), args.prefill))


if __name__ == "__main__":
    main()
