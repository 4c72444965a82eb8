"""The endpoint of OpenAI's Responses API."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable

from fastapi import Request, Response

from ..bodies import api_router
from ..errors import ApiError
from ..routes.common import ERRORS, STREAMED, json_response, now
from ..service import Run
from ..sse import EventStream, event, whole_answers
from ..state import State
from .convert import SEALED_REASONING, chat_task, shown_request
from .schema import ResponsesRequest
from .stream import Json, ResponseStream

router = api_router()


@router.post("/v1/responses", responses={**ERRORS, **STREAMED}, summary="Answer a chat (Responses)")
async def create_response(body: ResponsesRequest, request: Request, state: State) -> Response:
    """Whole, or as server-sent events that end with response.completed, .incomplete or .failed."""
    service = state.service
    (run,) = await service.chat(chat_task(body, state.options))
    stream = ResponseStream(
        f"resp_{secrets.token_hex(12)}",
        {"model": service.model_name, **shown_request(body, state.options)},
        now(),
        seal_reasoning=SEALED_REASONING in (body.include or ()),
    )
    if body.stream:

        def failed(error: ApiError) -> bytes:
            return _encode(stream.fail(error.message))

        return EventStream(_chunks(run, stream), [run], failed)
    ((finished, events),) = await whole_answers(request, [run])
    for item in [*events, finished]:
        stream.feed(item)
    return json_response(stream.response)


async def _chunks(run: Run, stream: ResponseStream) -> AsyncIterator[bytes]:
    yield _encode(stream.start())
    async for batch in run.batches():
        parts = [part for item in batch for part in stream.feed(item)]
        if parts:
            yield _encode(parts)


def _encode(parts: Iterable[Json]) -> bytes:
    return b"".join(event(part, part["type"]) for part in parts)
