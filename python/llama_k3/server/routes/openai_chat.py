"""OpenAI's chat completions, with llama.cpp's additions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import Request, Response

from ..bodies import api_router
from ..engine.request import Progress
from ..events import Event, Finished, TextDelta
from ..options import ReasoningFormat
from ..schemas.chat import ChatForm
from ..service import Run, Service
from ..sse import EventStream, merged, whole_answers
from ..state import State
from .chunks import DONE, ChatChunks, ThinkTags
from .common import FINGERPRINT, STREAMED, json_response, new_id, now, probs_json, progress_json, usage

router = api_router()


@router.post("/v1/chat/completions", responses=STREAMED, summary="Answer a chat")
@router.post("/chat/completions", include_in_schema=False)
async def chat_completions(form: ChatForm, request: Request, state: State) -> Response:
    """Whole, or as server-sent events that end with [DONE]."""
    service = state.service
    task = form.to_task(state.options, service.tokenizer)
    runs = await service.chat(task, form.n or 1)
    reasoning = form.reasoning_format or state.options.reasoning_format
    if form.stream:
        return EventStream(_stream(runs, form, service, reasoning), runs)
    answers = await whole_answers(request, runs)
    body = {
        "choices": [
            _choice(index, finished, events, service, reasoning, bool(form.logprobs))
            for index, (finished, events) in enumerate(answers)
        ],
        "created": now(),
        "model": service.model_name,
        "system_fingerprint": FINGERPRINT,
        "object": "chat.completion",
        "usage": usage(finished for finished, _ in answers),
        "id": new_id("chatcmpl-"),
        "timings": answers[0][0].result.timings.to_json(),
    }
    return json_response(body)


@router.post("/v1/chat/completions/input_tokens", summary="Count a chat's tokens")
@router.post("/chat/completions/input_tokens", include_in_schema=False)
async def input_tokens(form: ChatForm, state: State) -> Response:
    """Tokens of the prompt that the same request to /v1/chat/completions makes."""
    service = state.service
    task = form.to_task(state.options, service.tokenizer)
    prompt = await service.in_thread(lambda: service.render(task))
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})


def _choice(
    index: int,
    finished: Finished,
    events: Sequence[Event],
    service: Service,
    reasoning: ReasoningFormat,
    logprobs: bool,
) -> dict[str, Any]:
    said = finished.message
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if reasoning == "none":
        message["content"] = ThinkTags.whole(said.reasoning, said.content)
    elif said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.tool_calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                "id": new_id("call_"),
            }
            for call in said.tool_calls
        ]
    choice: dict[str, Any] = {"finish_reason": finished.reason, "index": index, "message": message}
    choice["logprobs"] = {"content": _content_probs(events, service), "refusal": None} if logprobs else None
    return choice


def _content_probs(events: Sequence[Event], service: Service) -> list[dict[str, Any]]:
    return [
        probs_json(probs, service.tokenizer)
        for item in events
        if isinstance(item, TextDelta) and item.delta is not None and item.delta.kind == "content"
        for probs in item.probs
    ]


async def _stream(
    runs: Sequence[Run], form: ChatForm, service: Service, reasoning: ReasoningFormat
) -> AsyncIterator[bytes]:
    chunks = ChatChunks(service.model_name, len(runs))
    tags = [ThinkTags() if reasoning == "none" else None for _ in runs]
    answers: dict[int, Finished] = {}
    yield b"".join(chunks.first(index) for index in range(len(runs)))
    async for index, batch in merged(runs):
        out: list[bytes] = []
        for item in batch:
            if isinstance(item, TextDelta):
                out.append(_delta_chunk(index, item, chunks, tags[index], bool(form.logprobs), service))
            elif isinstance(item, Progress):
                if form.return_progress:
                    out.append(chunks.chunk(index, {}, prompt_progress=progress_json(item)))
            else:
                answers[index] = item
                if len(answers) == len(runs):
                    break
                out.append(chunks.end(index, item.reason))
        if data := b"".join(out):
            yield data
    yield _last_chunks(index, answers, chunks, form)


def _delta_chunk(
    index: int,
    item: TextDelta,
    chunks: ChatChunks,
    tags: ThinkTags | None,
    logprobs: bool,
    service: Service,
) -> bytes:
    delta = item.delta
    if delta is None:
        return b""
    entries = None
    if logprobs and delta.kind == "content":
        entries = [probs_json(probs, service.tokenizer) for probs in item.probs]
    timings = item.timings.to_json() if item.timings is not None else None
    if tags is not None and delta.kind in ("reasoning", "content"):
        delta = tags.tagged(delta)
    return chunks.delta(index, delta, entries, timings)


def _last_chunks(index: int, answers: Mapping[int, Finished], chunks: ChatChunks, form: ChatForm) -> bytes:
    """The end of the last answer, usage where it was asked for, and timings in the last of them."""
    timings = answers[index].result.timings.to_json()
    if form.stream_options is None or not form.stream_options.include_usage:
        return chunks.end(index, answers[index].reason, timings=timings) + DONE
    total = usage(answers[number] for number in sorted(answers))
    return chunks.end(index, answers[index].reason) + chunks.usage(total, timings) + DONE
