"""Second opinion from llama.cpp (package `xllamacpp`): top log-probabilities after a given token sequence.

Run as a process of its own, since llama.cpp brings its own ggml:

    python -m tests.oracles.llamacpp_logits MODEL.gguf --tokens 5,17,3 [--top 20] [--all]

Prints one JSON object: `n_tokens`, and `positions`, a list of {"position": p, "top": [[id, logprob], ...]} in
falling order; p counts the tokens seen, so that p = n_tokens is the prediction after the whole sequence.
`--all` asks for every p from 1 on, one evaluation from scratch each. The cache is F32 and flash attention is
off. Stdout holds nothing else; llama.cpp's log goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import xllamacpp

from scripts.peers.xllamacpp_server import any_letter, ask, server_params


def open_server(path: str, n_ctx: int, threads: int) -> Any:
    params = server_params(path, n_ctx, threads)
    params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def top_logprobs(server: Any, tokens: list[int], top: int) -> list[tuple[int, float]]:
    """The `top` likeliest next tokens after `tokens`, with natural-log probabilities.

    The probabilities are those of the raw logits. The token that is drawn does not matter, but the server
    leaves the probabilities out where it is an incomplete character: a bias makes it always the letter "a".
    """
    letter = any_letter(server)
    request = {
        "prompt": tokens,
        "n_predict": 1,
        "n_probs": top,
        "logit_bias": [[letter, 1e6]],
        "cache_prompt": False,
        "post_sampling_probs": False,
    }
    answer = ask(server, "completion", request, timeout=120)
    if "completion_probabilities" not in answer:
        raise RuntimeError(f"no probabilities in the answer: {str(answer)[:500]}")
    if answer["tokens_evaluated"] != len(tokens):
        raise RuntimeError(f"{answer['tokens_evaluated']} tokens were evaluated, {len(tokens)} were given")
    entries = answer["completion_probabilities"][0]["top_logprobs"]
    return [(entry["id"], entry["logprob"]) for entry in entries]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tokens", required=True, help="token ids, separated by commas")
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--all", action="store_true", help="every position instead of the last")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    tokens = [int(item) for item in options.tokens.split(",")]
    server = open_server(options.model, max(256, len(tokens) + 16), options.threads)
    positions = range(1, len(tokens) + 1) if options.all else [len(tokens)]
    result = [{"position": p, "top": top_logprobs(server, tokens[:p], options.top)} for p in positions]
    print(json.dumps({"n_tokens": len(tokens), "positions": result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
