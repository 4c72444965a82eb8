"""Second opinion on Kimi-Linear: the logits of transformers for a checkpoint folder, in a process of its own.

    python transformers_logits.py CHECKPOINT TOKENS.npy OUT.npy [--prefill N]

TOKENS.npy holds int64 token ids [T], OUT.npy gets float32 logits [T, vocab]. With --prefill the first N
tokens go in at once and the others one by one through transformers' cache. Weights and arithmetic are
float32.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def logits(checkpoint: Path, tokens: np.ndarray, prefill: int | None) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = torch.from_numpy(tokens)[None]
    if prefill is None:
        return model(ids, use_cache=False).logits[0].numpy()
    result = model(ids[:, :prefill], use_cache=True)
    parts = [result.logits[0]]
    for position in range(prefill, len(tokens)):
        result = model(ids[:, position : position + 1], past_key_values=result.past_key_values)
        parts.append(result.logits[0])
    return torch.cat(parts).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--prefill", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    np.save(args.out, logits(args.checkpoint, np.load(args.tokens), args.prefill))


if __name__ == "__main__":
    main()
