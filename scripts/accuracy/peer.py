"""llama.cpp's log-probabilities (package `xllamacpp`): a process of its own, since it brings its own ggml.

    python -m scripts.accuracy.peer MODEL.gguf --tokens 5,17,3,9 --length 2 --cache f16 \\
        --vocab 8192 --out FILE.npy

FILE.npy gets float32 [tokens, n_vocab], as from `own`, but logarithms of probabilities for logits.
The server is asked for one token after each prefix, with the probabilities of the whole vocabulary; it keeps
the prefix before, so that each request evaluates one token.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp
from numpy.typing import NDArray

from scripts.peers.xllamacpp_server import any_letter, ask, server_params

CACHES = {
    name: getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}") for name in ("f32", "f16", "bf16", "q8_0")
}


def open_server(path: str, n_ctx: int, cache: str) -> Any:
    """A server with flash attention as it decides itself."""
    params = server_params(path, n_ctx, threads=1)
    params.cache_type_k = params.cache_type_v = CACHES[cache]
    return xllamacpp.Server(params)


def log_probabilities(server: Any, prompt: list[int], n_vocab: int, drawn: int) -> NDArray[np.float32]:
    """[n_vocab] after the prompt, of the raw logits.

    `drawn`: the token that a bias makes the answer, see any_letter.
    """
    request = {
        "prompt": prompt,
        "n_predict": 1,
        "n_probs": n_vocab,
        "logit_bias": [[drawn, 1e6]],
        "cache_prompt": True,
        "post_sampling_probs": False,
    }
    entries = ask(server, "completion", request)["completion_probabilities"][0]["top_logprobs"]
    row = np.full(n_vocab, np.nan, np.float32)
    row[[entry["id"] for entry in entries]] = [entry["logprob"] for entry in entries]
    if not np.isfinite(row).all():
        raise RuntimeError(f"found {np.isfinite(row).sum()} finite probabilities, wanted {n_vocab}")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--length", required=True, type=int)
    parser.add_argument("--cache", required=True, choices=CACHES)
    parser.add_argument("--vocab", required=True, type=int)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    tokens = [int(token) for token in args.tokens.split(",")]
    server = open_server(args.model, args.length + 16, args.cache)
    letter = any_letter(server)
    prompts = [tokens[end // args.length * args.length : end + 1] for end in range(len(tokens))]
    np.save(args.out, np.stack([log_probabilities(server, each, args.vocab, letter) for each in prompts]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
