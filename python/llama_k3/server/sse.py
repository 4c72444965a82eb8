"""Answers over HTTP: server-sent events while an answer is made, or the whole of it; a client that leaves
cancels its runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, answer_to, encode_json
from .events import Event, Finished
from .service import Run

logger = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event; `name`: its type where the API has types."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(data) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """How llama.cpp and OpenAI tell an error within a stream."""
    return event(error.to_json())


class EventStream(Response):
    """Sends chunks of events as they come. Nothing of Starlette's lies between them and uvicorn."""

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        runs: Sequence[Run],
        on_error: Callable[[ApiError], bytes] = error_event,
    ) -> None:
        """`chunks`: whole events. `runs`: cancelled when the client leaves or `chunks` ends.
        `on_error`: the event that tells of an error in the middle."""
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = list(_HEADERS)
        self._chunks = chunks
        self._runs = runs
        self._on_error = on_error
        self._n_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_on_disconnect(receive, self._runs):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pings = asyncio.create_task(self._ping(send, scope["app"].state.server.options.ping_interval))
            try:
                async for chunk in self._chunks:
                    self._n_sent += 1
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except Exception as error:
                chunk = self._on_error(answer_to(error, scope["method"], scope["path"]))
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            finally:
                pings.cancel()
            await send({"type": "http.response.body", "body": b""})

    async def _ping(self, send: Send, interval: float | None) -> None:
        """A stream that says nothing (a long prompt is read) sends comments, so that it stays open."""
        while interval is not None:
            before = self._n_sent
            await asyncio.sleep(interval)
            if self._n_sent == before:
                await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive, runs: Sequence[Run]) -> AsyncIterator[None]:
    """Cancels the runs when the client leaves, and at the end of the block. The body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for run in runs:
            run.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        for run in runs:
            run.cancel()


async def whole_answers(request: Request, runs: Sequence[Run]) -> list[tuple[Finished, list[Event]]]:
    """Wait for all runs, see Run.whole."""
    async with cancelled_on_disconnect(request.receive, runs):
        return await asyncio.gather(*(run.whole() for run in runs))


async def merged(runs: Sequence[Run]) -> AsyncIterator[tuple[int, list[Event]]]:
    """Batches of all runs as they come, each with the number of its run."""
    if len(runs) == 1:
        async for batch in runs[0].batches():
            yield 0, batch
        return
    queue: asyncio.Queue[tuple[int, list[Event] | Exception]] = asyncio.Queue()

    async def forward(index: int, run: Run) -> None:
        try:
            async for batch in run.batches():
                queue.put_nowait((index, batch))
        except Exception as error:
            queue.put_nowait((index, error))

    tasks = [asyncio.create_task(forward(index, run)) for index, run in enumerate(runs)]
    try:
        n_open = len(runs)
        while n_open:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            n_open -= isinstance(item[-1], Finished)
            yield index, item
    finally:
        for task in tasks:
            task.cancel()
