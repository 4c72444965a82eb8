"""JSON that several endpoints answer with: usage, probabilities, settings."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Response

from ... import __version__
from ...tokenizer import Tokenizer
from ..engine.request import Progress, Sampling, TokenProbs
from ..errors import encode_json
from ..events import Finished
from ..schemas.errors import ApiErrorBody
from ..service import AnswerOptions

FINGERPRINT = f"llama-k3-{__version__}"

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ApiErrorBody, "description": description}
    for status, description in (
        (400, "The request is wrong; the message names the field"),
        (401, "No API key, or an unknown one"),
        (403, "A web page of another site asks"),
        (404, "There is no such thing"),
        (408, "The body did not come in time"),
        (413, "The body is too large"),
        (500, "The server is at fault"),
        (501, "Not built into this server"),
        (503, "The model is being loaded, or the queue is full"),
        (504, "The request took too long"),
    )
}
"""The errors of every endpoint, for OpenAPI."""

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or its events with `stream`", "content": {"text/event-stream": {}}}
}
"""The answers of an endpoint that also streams, for OpenAPI."""


def json_response(value: Any) -> Response:
    """200 with finite JSON."""
    return Response(encode_json(value), media_type="application/json")


def new_id(prefix: str) -> str:
    """chatcmpl-..., cmpl-..., call_..."""
    return prefix + secrets.token_urlsafe(18).replace("-", "x").replace("_", "y")


def now() -> int:
    """Seconds of the Unix clock."""
    return int(time.time())


def usage(answers: Iterable[Finished]) -> dict[str, Any]:
    """OpenAI's usage of one prompt and its answers."""
    finished = list(answers)
    n_prompt = finished[0].result.n_prompt
    n_answer = sum(one.result.n_predicted for one in finished)
    return {
        "completion_tokens": n_answer,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_answer,
        "prompt_tokens_details": {"cached_tokens": finished[0].result.timings.cache_n},
        "completion_tokens_details": {"reasoning_tokens": sum(one.n_reasoning for one in finished)},
    }


def progress_json(progress: Progress) -> dict[str, Any]:
    """llama.cpp's prompt_progress."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": round(progress.time_ms, 3),
    }


def probs_json(probs: TokenProbs, tokenizer: Tokenizer) -> dict[str, Any]:
    """One entry of logprobs.content."""
    return {
        **_token_json(probs.token, probs.logprob, tokenizer),
        "top_logprobs": [_token_json(token, logprob, tokenizer) for token, logprob in probs.top],
    }


def _token_json(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.decode_bytes([token])
    return {"id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": logprob}


def settings_json(options: AnswerOptions) -> dict[str, Any]:
    """llama.cpp's generation_settings, of the parameters that there are here."""
    return {
        **sampling_json(options.sampling),
        "stop": list(options.stop),
        "max_tokens": options.max_tokens,
        "n_predict": options.max_tokens,
        "ignore_eos": options.ignore_eos,
        "n_probs": options.n_probs or 0,
        "cache_prompt": options.cache_prompt,
        "timings_per_token": options.timings_per_token,
    }


def sampling_json(sampling: Sampling) -> dict[str, Any]:
    """Parameters of Sampling; a ban is the bias false."""
    return {
        "seed": -1 if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": [
            {"token": token, "bias": False if bias == float("-inf") else bias}
            for token, bias in sampling.logit_bias.items()
        ],
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
    }


def nested_fields(value: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The fields at `paths` ("timings/prompt_n"), each under its last name; those that are not there are
    left out."""
    found: dict[str, Any] = {}
    for path in paths:
        at: Any = value
        names = path.split("/")
        for name in names:
            at = at.get(name, _MISSING) if isinstance(at, Mapping) else _MISSING
        if at is not _MISSING:
            found[names[-1]] = at
    return found


_MISSING = object()
