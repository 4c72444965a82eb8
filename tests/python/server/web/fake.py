"""A server with the real page and scripted answers in llama-server's streaming format."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from llama_k3.server.web import add_web_page
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

N_CTX = 4096
TIMINGS = {
    "cache_n": 340,
    "prompt_n": 12,
    "prompt_ms": 60.0,
    "prompt_per_token_ms": 5.0,
    "prompt_per_second": 200.0,
    "predicted_n": 25,
    "predicted_ms": 500.0,
    "predicted_per_token_ms": 20.0,
    "predicted_per_second": 50.0,
}


class Gate:
    """A place in an answer where the server waits until the test opens it."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        self._opened.set()
        for loop, event in self._waiting:
            loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        event = asyncio.Event()
        self._waiting.append((asyncio.get_running_loop(), event))
        if not self._opened.is_set():
            await event.wait()


@dataclass(frozen=True)
class Drop:
    """The connection breaks here; `clean`: as if the answer were whole, as a proxy may do it."""

    clean: bool = False


Chunk = dict[str, Any]
Step = Chunk | Gate | Drop


def delta(**fields: Any) -> Chunk:
    """A chunk with a piece of the answer."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call(name: str, *arguments: str, id: str = "call_1", index: int = 0) -> list[Step]:
    """The chunks of one tool call, its arguments in pieces."""
    head = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [{"index": index, "function": {"arguments": part}} for part in arguments]
    return [delta(tool_calls=[part]) for part in (head, *parts)]


def progress(processed: int, cache: int = 100, total: int = 1100) -> Chunk:
    """The prompt has been read up to here."""
    return {
        **delta(),
        "prompt_progress": {"total": total, "cache": cache, "processed": processed, "time_ms": 5},
    }


def end(finish: str = "stop", reasoning: int = 0) -> list[Step]:
    """The last chunks of an answer with so many tokens of reasoning."""
    usage = {
        "prompt_tokens": 352,
        "completion_tokens": 25,
        "total_tokens": 377,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    return [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage, "timings": TIMINGS},
    ]


def error(status: int, message: str, code: str | int | None = None, **details: Any) -> JSONResponse:
    """An answer that is an error."""
    body = {"error": {"code": code or status, "message": message, "type": "error", **details}}
    return JSONResponse(body, status)


class FakeServer:
    """Answers chats in the order of `script`. `requests`: the bodies that came. `key`: the API key wanted."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.script: list[list[Step] | Response] = []
        self.key: str | None = None
        self.left = threading.Event()
        """Set when a client left before its answer was whole."""

        app = Starlette(
            routes=[
                Route("/props", self._props),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )
        add_web_page(app)
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def reset(self) -> None:
        """Forget what was asked and scripted."""
        self.requests.clear()
        self.script.clear()
        self.key = None
        self.left.clear()

    def says(self, *steps: Step | list[Step]) -> None:
        """Script one more answer; a list of steps stands for its steps."""
        flat: list[Step] = []
        for step in steps:
            flat.extend(step if isinstance(step, list) else [step])
        self.script.append(flat)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def url(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def _refusal(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return error(401, "found an unknown API key", "invalid_api_key")

    async def _props(self, request: Request) -> Response:
        params = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "max_tokens": -1}
        settings = {"n_ctx": N_CTX, "params": params}
        body = {
            "default_generation_settings": settings,
            "model_path": "models/k3.gguf",
            "model_alias": "kimi-k3",
        }
        return self._refusal(request) or JSONResponse(body)

    async def _chat(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        self.requests.append(await request.json())
        answer = self.script.pop(0)
        return (
            answer
            if isinstance(answer, Response)
            else StreamingResponse(self._stream(answer), media_type="text/event-stream")
        )

    async def _stream(self, steps: list[Step]) -> AsyncIterator[str]:
        try:
            for step in steps:
                if isinstance(step, Gate):
                    await step.wait()
                elif isinstance(step, Drop):
                    if step.clean:
                        return
                    raise ConnectionError
                else:
                    yield f"data: {json.dumps(step)}\n\n"
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left.set()
            raise
