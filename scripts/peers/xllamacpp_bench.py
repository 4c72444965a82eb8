"""A llama-bench on `xllamacpp`, an AVX2 wheel of llama.cpp: the flags and the JSON that are used here.

Speeds are those that its server reports, so that sampling and one HTTP request are in them. Run as a process
of its own, since llama.cpp brings its own ggml.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
import xllamacpp

from scripts.peers.xllamacpp_server import ask, server_params


def open_server(path: str, n_ctx: int, threads: int) -> Any:
    params = server_params(path, n_ctx, threads)
    params.warmup = True
    return xllamacpp.Server(params)


def complete(server: Any, prompt: list[int], n_predict: int) -> dict[str, Any]:
    """The server's timings of one request."""
    request = {"prompt": prompt, "n_predict": n_predict, "cache_prompt": True, "ignore_eos": True}
    timings: dict[str, Any] = ask(server, "completion", request, timeout=24 * 3600)["timings"]
    return timings


def measure(server: Any, n_prompt: int, n_gen: int, depth: int, n_vocab: int) -> list[dict[str, Any]]:
    """One prompt and one generation behind `depth` tokens; at 0 the generation follows one token."""
    tokens = np.random.default_rng(depth).integers(0, n_vocab, depth + n_prompt).tolist()
    if depth:
        complete(server, tokens[:depth], 1)
    prompt = complete(server, tokens, 1)
    if prompt["prompt_n"] != n_prompt:
        raise RuntimeError(f"{prompt['prompt_n']} prompt tokens were computed, {n_prompt} were wanted")
    # The server's clock starts behind the first token, which comes with the prompt.
    answer = complete(server, tokens[: max(1, depth)], n_gen + 1)
    if answer["predicted_n"] != n_gen + 1:
        raise RuntimeError(f"{answer['predicted_n']} tokens were generated, {n_gen + 1} were wanted")
    return [
        {"n_prompt": n_prompt, "n_gen": 0, "samples_ts": [prompt["prompt_per_second"]]},
        {"n_prompt": 0, "n_gen": n_gen, "samples_ts": [1e3 * n_gen / answer["predicted_ms"]]},
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", required=True)
    for flag in ("-p", "-n", "-t"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("-d", required=True, help="depths, separated by commas")
    parser.add_argument("-r", choices=["1"], default="1")
    parser.add_argument("-o", choices=["json"], default="json")
    args = parser.parse_args()
    depths = [int(depth) for depth in args.d.split(",")]
    server = open_server(args.m, max(depths) + args.p + args.n + 16, args.t)
    # Ids that every vocabulary has.
    results = [
        {**result, "n_depth": depth, "n_threads": args.t}
        for depth in depths
        for result in measure(server, args.p, args.n, depth, n_vocab=512)
    ]
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
