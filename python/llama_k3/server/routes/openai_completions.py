"""OpenAI's completions of texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request, Response

from ...tokenizer import Tokenizer
from ..bodies import api_router
from ..engine.request import Progress
from ..events import Event, Finished, TextDelta
from ..schemas.completion import OpenAICompletionForm
from ..service import Run, Service
from ..sse import EventStream, event, merged, whole_answers
from ..state import State
from .chunks import DONE
from .common import FINGERPRINT, STREAMED, json_response, new_id, now, probs_json, progress_json, usage
from .texts import start_texts

router = api_router()


@router.post("/v1/completions", responses=STREAMED, summary="Continue a text")
async def completions(form: OpenAICompletionForm, request: Request, state: State) -> Response:
    """Whole, or as server-sent events that end with [DONE]."""
    service = state.service
    n = form.n or 1
    runs = (await start_texts(form, state, form.logprobs, n)).runs
    base = {
        "id": new_id("cmpl-"),
        "created": now(),
        "model": service.model_name,
        "system_fingerprint": FINGERPRINT,
        "object": "text_completion",
    }
    if form.stream:
        return EventStream(_stream(runs, form, service, base, n), runs)
    answers = await whole_answers(request, runs)
    choices = [
        {
            "index": index,
            "text": finished.message.content,
            "finish_reason": finished.reason,
            "logprobs": Logprobs(service.tokenizer).json(_deltas(events))
            if form.logprobs is not None
            else None,
        }
        for index, (finished, events) in enumerate(answers)
    ]
    body = {
        **base,
        "choices": choices,
        "usage": _usage([finished for finished, _ in answers], n),
        "timings": answers[0][0].result.timings.to_json(),
    }
    return json_response(body)


def _deltas(events: Sequence[Event]) -> list[TextDelta]:
    return [item for item in events if isinstance(item, TextDelta)]


def _usage(answers: Sequence[Finished], n: int) -> dict[str, Any]:
    """Sums over all prompts, each of which has n answers."""
    parts = [usage(answers[start : start + n]) for start in range(0, len(answers), n)]
    total = parts[0]
    for part in parts[1:]:
        for name in ("completion_tokens", "prompt_tokens", "total_tokens"):
            total[name] += part[name]
        total["prompt_tokens_details"]["cached_tokens"] += part["prompt_tokens_details"]["cached_tokens"]
    return total


class Logprobs:
    """OpenAI's old form of log probabilities, and the form of chats in `content`. Offsets count characters
    from the start of the answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._data = b""

    def json(self, deltas: Sequence[TextDelta]) -> dict[str, Any]:
        """Of the next pieces of the answer."""
        content = [
            probs_json(probs, self._tokenizer)
            for item in deltas
            if item.delta is not None
            for probs in item.probs
        ]
        offsets = []
        for entry in content:
            offsets.append(len(self._data.decode("utf-8", "ignore")))
            self._data += bytes(entry["bytes"])
        return {
            "tokens": [entry["token"] for entry in content],
            "token_logprobs": [entry["logprob"] for entry in content],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in content
            ],
            "text_offset": offsets,
            "content": content,
        }


async def _stream(
    runs: Sequence[Run], form: OpenAICompletionForm, service: Service, base: dict[str, Any], n: int
) -> AsyncIterator[bytes]:
    logprobs = [Logprobs(service.tokenizer) if form.logprobs is not None else None for _ in runs]
    answers: dict[int, Finished] = {}
    async for index, batch in merged(runs):
        out: list[bytes] = []
        for item in batch:
            if isinstance(item, Finished):
                answers[index] = item
                continue
            choice: dict[str, Any] = {"index": index, "text": "", "finish_reason": None, "logprobs": None}
            fields: dict[str, Any] = {}
            if isinstance(item, Progress):
                if not form.return_progress:
                    continue
                fields["prompt_progress"] = progress_json(item)
            elif item.delta is None:
                continue
            else:
                choice["text"] = item.delta.text
                if (probs := logprobs[index]) is not None:
                    choice["logprobs"] = probs.json([item])
                if item.timings is not None:
                    fields["timings"] = item.timings.to_json()
            out.append(event({"choices": [choice], **base, **fields}))
        if index in answers:
            out.append(_end(index, answers, len(runs), form, base, n))
        yield b"".join(out)
    yield DONE


def _end(
    index: int,
    answers: dict[int, Finished],
    n_runs: int,
    form: OpenAICompletionForm,
    base: dict[str, Any],
    n: int,
) -> bytes:
    """The end of one answer; behind the last one usage, where it was asked for. The very last has timings."""
    finished = answers[index]
    choice = {"index": index, "text": "", "finish_reason": finished.reason, "logprobs": None}
    if len(answers) < n_runs:
        return event({"choices": [choice], **base})
    timings = finished.result.timings.to_json()
    if form.stream_options is None or not form.stream_options.include_usage:
        return event({"choices": [choice], **base, "timings": timings})
    total = _usage([answers[number] for number in range(n_runs)], n)
    return event({"choices": [choice], **base}) + event(
        {"choices": [], **base, "usage": total, "timings": timings}
    )
