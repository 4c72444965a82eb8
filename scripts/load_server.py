"""Load on llama-server: parallel streams, a long queue, clients that leave; nothing may be lost.

    python scripts/load_server.py MODEL.gguf [--minutes M] [--waiting N]

Keeps N requests open against a server of eight slots: chats and texts, streamed or not, short and
long, from a small set of prompts whose greedy answers are asked for first, alone. A third of the
clients leave at a random moment. Every answer that was waited for has to be the one known; at the
end every slot has to be idle, the queue empty, and the memory where it was after the first tenth of
the time. Exit status 1 where it is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.serving.process import Server  # noqa: E402 - found by the line above

SLOTS = 8
QUESTIONS = ["Who are you?", "What is 27 + 15?", "Repeat after me: seven red boats", "What is 3 + 4?"]
Body = dict[str, Any]


def requests() -> list[tuple[str, Body]]:
    """Route and body of every request that is made."""
    chats: list[Body] = [
        {"messages": [{"role": "user", "content": question}], "max_tokens": 60} for question in QUESTIONS
    ]
    chats += [
        {
            "messages": [
                {"role": "system", "content": "word " * length},
                {"role": "user", "content": QUESTIONS[length % len(QUESTIONS)]},
            ],
            "max_tokens": 30,
        }
        for length in (50, 301, 702)
    ]
    texts = [{"prompt": "once upon a time " * n, "n_predict": 24} for n in (1, 40, 400)]
    found = [("/v1/chat/completions", body) for body in chats] + [("/completion", body) for body in texts]
    return [(route, {**body, "temperature": 0}) for route, body in found]


def text_of(reply: Body) -> str:
    """What an answer says, in either form."""
    if "choices" not in reply:
        return str(reply["content"])
    message = reply["choices"][0]["message"]
    return f"{message.get('reasoning_content') or ''}|{message.get('content') or ''}"


async def streamed(client: httpx.AsyncClient, route: str, body: Body) -> str:
    """The same from a stream."""
    reasoning = content = ""
    async with client.stream("POST", route, json={**body, "stream": True}) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"error in a stream: {event}")
            if "choices" not in event:
                content += event["content"]
                continue
            for choice in event["choices"]:
                reasoning += choice["delta"].get("reasoning_content") or ""
                content += choice["delta"].get("content") or ""
    return content if route == "/completion" else f"{reasoning}|{content}"


class Load:
    """The clients and what became of their requests."""

    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._requests = requests()
        self._known: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def learn(self) -> None:
        """The answers, asked for one at a time and without the cache."""
        for route, body in self._requests:
            reply = await self._client.post(route, json={**body, "cache_prompt": False})
            reply.raise_for_status()
            self._known.append(text_of(reply.json()))

    async def client(self, until: float) -> None:
        """One client: request after request until the time."""
        while time.monotonic() < until:
            index = self._random.randrange(len(self._requests))
            leaves = self._random.random() < 1 / 3
            try:
                asking = self._ask(index, self._random.random() < 0.5)
                answer = (
                    await asyncio.wait_for(asking, self._random.uniform(0, 3)) if leaves else await asking
                )
            except asyncio.TimeoutError:
                self.outcomes["left"] += 1
                continue
            except (httpx.HTTPError, RuntimeError) as error:
                self.outcomes["failed"] += 1
                self.wrong.append(f"{self._requests[index]}: {error!r}")
                continue
            self.outcomes["answered"] += 1
            if answer != self._known[index]:
                self.wrong.append(f"{self._requests[index]}: found {answer!r}, wanted {self._known[index]!r}")

    async def _ask(self, index: int, stream: bool) -> str:
        route, body = self._requests[index]
        if stream:
            return await streamed(self._client, route, body)
        reply = await self._client.post(route, json=body)
        reply.raise_for_status()
        return text_of(reply.json())


async def watch_memory(server: Server, until: float, samples: list[int]) -> None:
    while time.monotonic() < until:
        samples.append(server.resident_bytes())
        await asyncio.sleep(1)


async def settle(client: httpx.AsyncClient, seconds: float = 30) -> list[Body]:
    """The slots, once none is at work or the time is over."""
    end = time.monotonic() + seconds
    while True:
        slots: list[Body] = (await client.get("/slots")).json()
        if not any(slot["is_processing"] for slot in slots) or time.monotonic() > end:
            return slots
        await asyncio.sleep(0.2)


async def run(server: Server, minutes: float, waiting: int, seed: int) -> list[str]:
    """What is wrong at the end; prints what was done."""
    limits = httpx.Limits(max_connections=None)
    faults: list[str] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        load = Load(client, seed)
        await load.learn()
        until = time.monotonic() + 60 * minutes
        samples: list[int] = []
        await asyncio.gather(
            watch_memory(server, until, samples), *(load.client(until) for _ in range(SLOTS + waiting))
        )
        slots = await settle(client)
        metrics = (await client.get("/metrics")).text
    early, late = max(samples[: max(1, len(samples) // 10)]), max(samples[-max(1, len(samples) // 10) :])
    print(f"{dict(load.outcomes)}; memory {early / 2**20:.1f} MiB early, {late / 2**20:.1f} MiB late")
    print("\n".join(line for line in metrics.splitlines() if line.startswith(("llamacpp:", "llama_k3:"))))
    faults += load.wrong[:20]
    faults += [f"slot {slot['id']} is still at work" for slot in slots if slot["is_processing"]]
    if late > 1.1 * early + (16 << 20):
        faults.append(f"memory: found {late} bytes late, wanted what it was early, {early}")
    if not load.outcomes["answered"] or not load.outcomes["left"]:
        faults.append(f"outcomes: found {dict(load.outcomes)}, wanted answers and clients that left")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--waiting", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    flags = ["-np", str(SLOTS), "-c", "4096", "--metrics", "-cram", "16"]
    with Server(args.model, *flags) as server:
        faults = asyncio.run(run(server, args.minutes, args.waiting, args.seed))
        if not server.alive:
            faults.append("the server ended:\n" + server.log())
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
