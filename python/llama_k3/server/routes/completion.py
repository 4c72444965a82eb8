"""llama.cpp's own completion of texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import Request, Response

from ..bodies import api_router
from ..engine.request import Progress
from ..errors import FORMS, ApiError
from ..events import Event, Finished, TextDelta
from ..schemas.completion import CompletionForm
from ..service import Service
from ..sse import EventStream, event, merged, whole_answers
from ..state import State
from .common import STREAMED, json_response, nested_fields, probs_json, progress_json, settings_json
from .texts import StartedTexts, start_texts

router = api_router()


def _native_error(error: ApiError) -> Mapping[str, Any]:
    """llama.cpp's type of a prompt that is too long."""
    body = error.to_json()
    if error.code == "context_length_exceeded":
        body["error"].update(type="exceed_context_size_error", code=error.status_code)
    return body


FORMS["/completion"] = _native_error
FORMS["/completions"] = _native_error


@router.post("/completion", responses=STREAMED, summary="Continue a text (llama.cpp's own form)")
@router.post("/completions", include_in_schema=False)
async def completion(form: CompletionForm, request: Request, state: State) -> Response:
    """One answer as an object, several as a list; or server-sent events."""
    service = state.service
    started = await start_texts(form, state, form.n_probs or None, form.n or 1)
    if form.stream:
        return EventStream(_stream(started, form, service), started.runs)
    answers = await whole_answers(request, started.runs)
    bodies = [
        _final(index, started, finished, events, form, service)
        for index, (finished, events) in enumerate(answers)
    ]
    return json_response(bodies if len(bodies) > 1 else bodies[0])


def _final(
    index: int,
    started: StartedTexts,
    finished: Finished,
    events: Sequence[Event],
    form: CompletionForm,
    service: Service,
) -> dict[str, Any]:
    """The last object of an answer; in a stream `events` is empty, as all has been told."""
    result = finished.result
    deltas = [item for item in events if isinstance(item, TextDelta)]
    content = finished.message.content
    body: dict[str, Any] = {
        "index": index,
        "content": "" if form.stream else content,
        "tokens": [token for item in deltas for token in item.tokens] if form.return_tokens else [],
        "id_slot": result.slot,
        "stop": True,
        "model": service.model_name,
        "tokens_predicted": result.n_predicted,
        "tokens_evaluated": result.n_prompt,
        "generation_settings": {**settings_json(started.options), "stream": bool(form.stream)},
        "prompt": started.prompts[index],
        "has_new_line": "\n" in content,
        "truncated": False,
        "stop_type": finished.stop_type,
        "stopping_word": finished.stopping_word,
        "tokens_cached": result.n_prompt + result.n_predicted,
        "timings": result.timings.to_json(),
    }
    if form.n_probs and not form.stream:
        body["completion_probabilities"] = _probs(deltas, service)
    return nested_fields(body, form.response_fields) if form.response_fields else body


def _probs(deltas: Sequence[TextDelta], service: Service) -> list[dict[str, Any]]:
    """Of every token, control tokens too."""
    return [probs_json(probs, service.tokenizer) for item in deltas for probs in item.probs]


async def _stream(started: StartedTexts, form: CompletionForm, service: Service) -> AsyncIterator[bytes]:
    runs = started.runs
    n_predicted = [0] * len(runs)
    async for index, batch in merged(runs):
        out: list[bytes] = []
        for item in batch:
            if isinstance(item, Finished):
                out.append(event(_final(index, started, item, (), form, service)))
                continue
            body: dict[str, Any] = {
                "index": index,
                "content": "",
                "tokens": [],
                "stop": False,
                "id_slot": runs[index].request.slot if runs[index].request.slot is not None else -1,
                "tokens_predicted": n_predicted[index],
                "tokens_evaluated": runs[index].prompt_tokens,
            }
            if isinstance(item, Progress):
                if not form.return_progress:
                    continue
                body["prompt_progress"] = progress_json(item)
            else:
                n_predicted[index] += len(item.tokens)
                content = "" if item.delta is None else item.delta.text
                body.update(content=content, tokens=item.tokens, tokens_predicted=n_predicted[index])
                if form.n_probs:
                    body["completion_probabilities"] = _probs([item], service)
                if item.timings is not None:
                    body["timings"] = item.timings.to_json()
            out.append(event(body))
        if data := b"".join(out):
            yield data
