"""llama-k3's logits of one form: a process of its own, since form and kernels are read from the environment.

    python -m scripts.accuracy.own MODEL.gguf --tokens 5,17,3,9 --length 2 --cache bf16 --out FILE.npy

FILE.npy gets float32 [tokens, n_vocab]: the logits after each token, in sequences of `length` tokens.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from llama_k3 import LlamaK3Error, Model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--length", required=True, type=int)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    tokens = [int(token) for token in args.tokens.split(",")]
    try:
        with (
            Model(args.model, n_threads=1) as model,
            model.context(args.length, kv_type=args.cache) as context,
        ):
            rows = []
            for start in range(0, len(tokens), args.length):
                context.clear(0)
                rows.append(context.decode(tokens[start : start + args.length], logits="all"))
            np.save(args.out, np.concatenate(rows))
    except LlamaK3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
