"""Speed of llama-server beside llama-bench on the same model, in turn within one run.

    python scripts/bench_server.py MODEL.gguf [-t N] [--rounds N] [--n-predict N]

Each round measures llama-bench's decode, one stream of the server, and eight streams at once. A
stream's speed is taken by the client: tokens behind the first one over the time between the first
and the last. For eight streams: all tokens between the moment at which the last of them has begun
and the one at which the first ends. The ratios are those of each round; medians are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.serving.process import Server  # noqa: E402 - found by the line above

STREAMS = 8


def bench(model: Path, threads: int, n_predict: int) -> float:
    """Tokens a second of llama-bench's decode."""
    command = [sys.executable, "-m", "llama_k3.cli.bench", "-m", str(model), "-t", str(threads)]
    command += ["-p", "0", "-n", str(n_predict), "-r", "1", "--no-mmap", "-o", "json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def token_times(pieces: Sequence[tuple[float, bytes]]) -> list[float]:
    """When each token had come, from the pieces of the event stream."""
    times: list[float] = []
    held = b""
    for moment, piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                times += [moment] * len(json.loads(line[6:]).get("tokens", []))
    return times


async def stream(client: httpx.AsyncClient, number: int, n_predict: int) -> list[float]:
    """The times at which the tokens of one answer came."""
    body = {
        "prompt": [100 + number * 7 + i for i in range(32)],
        "n_predict": n_predict,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "return_tokens": True,
        "cache_prompt": False,
    }
    # The client shares the processors with the server: it notes when bytes came and reads them at the end.
    pieces: list[tuple[float, bytes]] = []
    async with client.stream("POST", "/completion", json=body) as reply:
        reply.raise_for_status()
        async for piece in reply.aiter_raw():
            pieces.append((time.perf_counter(), piece))
    times = token_times(pieces)
    if len(times) != n_predict:
        raise RuntimeError(f"stream {number}: found {len(times)} tokens, wanted {n_predict}")
    return times


async def streams(url: str, count: int, n_predict: int) -> float:
    """Tokens a second of `count` streams together."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        answers = await asyncio.gather(*(stream(client, i, n_predict) for i in range(count)))
    begin, end = max(times[0] for times in answers), min(times[-1] for times in answers)
    return sum(sum(begin < moment <= end for moment in times) for times in answers) / (end - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n-predict", type=int, default=256)
    args = parser.parse_args()
    flags = ["-t", str(args.threads), "-np", str(STREAMS), "-c", str(4 * args.n_predict), "--no-mmap"]
    one, eight = [], []
    with Server(args.model, *flags) as server:
        asyncio.run(streams(server.url, STREAMS, 16))  # builds the graphs
        for number in range(args.rounds):
            reference = bench(args.model, args.threads, args.n_predict)
            single = asyncio.run(streams(server.url, 1, args.n_predict))
            many = asyncio.run(streams(server.url, STREAMS, args.n_predict))
            one.append(single / reference)
            eight.append(many / single)
            print(
                f"round {number + 1}: llama-bench {reference:.1f} t/s, one stream {single:.1f} "
                f"({one[-1]:.1%}), {STREAMS} streams {many:.1f} ({eight[-1]:.2f} x one)"
            )
    print(
        f"medians: one stream {median(one):.1%} of llama-bench, {STREAMS} streams {median(eight):.2f} x one"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
