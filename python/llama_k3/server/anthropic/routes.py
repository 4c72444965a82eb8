"""The endpoints of Anthropic's Messages API."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import Request, Response

from ..bodies import api_router
from ..errors import FORMS, ApiError
from ..routes.common import ERRORS, STREAMED, json_response
from ..service import Run
from ..sse import EventStream, event, whole_answers
from ..state import State
from .convert import chat_task
from .schema import ErrorBody, MessagesRequest, PromptRequest
from .stream import MessageStream, whole_message

PATH = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}

router = api_router()


def error_body(error: ApiError) -> Mapping[str, Any]:
    """An error in Anthropic's form. A prompt beyond the context is told in words that clients know."""
    kind = _TYPES.get(error.status_code, "invalid_request_error" if error.status_code < 500 else "api_error")
    body: dict[str, Any] = {"type": kind, "message": error.message, **error.details}
    if error.code == "context_length_exceeded":
        n_prompt, n_ctx = error.details["n_prompt_tokens"], error.details["n_ctx"]
        body["message"] = f"prompt is too long: {n_prompt} tokens > {n_ctx} maximum"
        body["code"] = error.code
    return {"type": "error", "error": body}


FORMS[PATH] = error_body

_ERRORS = {status: {**description, "model": ErrorBody} for status, description in ERRORS.items()}


@router.post(PATH, responses={**_ERRORS, **STREAMED}, summary="Answer a chat (Anthropic)")
async def create_message(body: MessagesRequest, request: Request, state: State) -> Response:
    """Whole, or as server-sent events that end with message_stop."""
    service = state.service
    (run,) = await service.chat(chat_task(body, state.options))
    stream = MessageStream(
        f"msg_{secrets.token_hex(12)}",
        service.model_name,
        run.prompt_tokens,
        body.max_tokens,
        omit_thinking=body.thinking is not None and body.thinking.display == "omitted",
    )
    if body.stream:
        return EventStream(_chunks(run, stream), [run], lambda error: event(error_body(error), "error"))
    ((finished, events),) = await whole_answers(request, [run])
    message = whole_message(part for item in [*events, finished] for part in stream.feed(item))
    return json_response(message)


async def _chunks(run: Run, stream: MessageStream) -> AsyncIterator[bytes]:
    async for batch in run.batches():
        parts = [part for item in batch for part in stream.feed(item)]
        if parts:
            yield b"".join(event(part, part["type"]) for part in parts)


@router.post(PATH + "/count_tokens", responses=_ERRORS, summary="Count a chat's tokens (Anthropic)")
async def count_tokens(body: PromptRequest, state: State) -> Response:
    """Tokens of the prompt that the same request to /v1/messages makes."""
    service, task = state.service, chat_task(body, state.options)
    prompt = await service.in_thread(lambda: service.render(task))
    return json_response({"input_tokens": len(prompt.tokens)})
