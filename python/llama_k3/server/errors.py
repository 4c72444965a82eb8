"""What the endpoints answer instead of a result: one class, and one JSON form of it.

The form is {"error": {"code", "message", "type", "param"?}}. `code` is OpenAI's word where it has one,
else the HTTP status. An endpoint of another API registers its own form for its paths in `FORMS`.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import HTTPException, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from ..errors import ArgumentError, ClosedError, LlamaK3Error, OutOfMemoryError, StateError
from .engine.engine import QueueFullError

_PLACE = re.compile(r"([A-Za-z_][A-Za-z0-9_.\[\]]*): ")
"""A field's name at the beginning of a message."""

_TYPE_MARKS = ("str", "int", "float", "bool", "constrained-str")

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
"""Seconds after which a request that was refused for a full queue may be sent again."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    431: "invalid_request_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class ApiError(HTTPException):
    """A request that is answered with an error. May be raised anywhere in an endpoint."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | int | None = None,
        param: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`type`, `code`: by default those of the status. `details`: further fields of the error object."""
        super().__init__(status, message, dict(headers) if headers else None)
        self.message = message
        self.type = type or _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.code = status if code is None else code
        self.param = param
        self.details = dict(details or {})

    def to_json(self) -> dict[str, Any]:
        """The body of the answer, in OpenAI's form."""
        error = {"code": self.code, "message": self.message, "type": self.type}
        if self.param is not None:
            error["param"] = self.param
        return {"error": {**error, **self.details}}


class ContextOverflowError(LlamaK3Error):
    """A prompt that leaves no room in a slot's context."""

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        """Both in tokens."""
        super().__init__(
            f"This model's maximum context length is {n_ctx} tokens. However, your messages resulted in "
            f"{n_prompt} tokens, and the answer needs at least one. Please reduce the length of the messages."
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class RequestTimeoutError(LlamaK3Error):
    """A request took longer than the server allows."""


class ShutdownError(LlamaK3Error):
    """The server ends."""


ErrorForm = Callable[[ApiError], Mapping[str, Any]]

FORMS: dict[str, ErrorForm] = {}
"""Forms of the error bodies by the beginning of the path; OpenAI's for all other paths."""


def error_form(path: str) -> ErrorForm:
    """The form for a path (without the server's prefix): that of the longest beginning."""
    matches = [start for start in FORMS if path == start or path.startswith(start + "/")]
    return FORMS[max(matches, key=len)] if matches else ApiError.to_json


def unsupported(param: str, reason: str) -> ApiError:
    """400 for a field that is known and has no effect here."""
    return ApiError(400, f"{param}: {reason}", param=param)


def api_error(error: Exception) -> ApiError | None:
    """The answer to an exception that a request caused; None for one that is the server's own fault."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _validation_error(error)
    if isinstance(error, StarletteHTTPException):
        headers = dict(error.headers) if error.headers else None
        return ApiError(error.status_code, str(error.detail), headers=headers)
    if isinstance(error, ContextOverflowError):
        return ApiError(
            400,
            str(error),
            code="context_length_exceeded",
            param="messages",
            details={"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx},
        )
    if isinstance(error, ArgumentError):
        place = _PLACE.match(str(error))
        return ApiError(400, str(error), param=place.group(1) if place else None)
    return _busy_error(error)


def answer_to(error: Exception, method: str, path: str) -> ApiError:
    """The answer to any exception. One of the server's own is logged, and told by a number alone."""
    known = api_error(error)
    if known is not None and known.status_code != 500:
        return known
    number = secrets.token_hex(8)
    logger.error("%s %s: error %s", method, path, number, exc_info=error)
    return ApiError(500, f"Internal error {number}; the server's log has more", details={"error_id": number})


def error_response(error: Exception, method: str, path: str) -> Response:
    """The answer to any exception as a response, in the form of the path's API."""
    answer = answer_to(error, method, path)
    body = encode_json(error_form(path)(answer))
    return Response(body, answer.status_code, answer.headers, media_type="application/json")


def encode_json(value: object) -> bytes:
    """JSON with finite numbers only; lone surrogates become question marks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _busy_error(error: Exception) -> ApiError | None:
    """Errors of a request that is right at another time."""
    if isinstance(error, QueueFullError):
        return ApiError(503, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, RequestTimeoutError):
        return ApiError(504, str(error))
    if isinstance(error, (ClosedError, ShutdownError)):
        return ApiError(503, "The server is shutting down")
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, str(error))
    if isinstance(error, StateError):
        return ApiError(400, str(error))
    if isinstance(error, LlamaK3Error):
        return ApiError(500, str(error))
    return None


def _validation_error(error: RequestValidationError) -> ApiError:
    """Names the first field that is wrong, what was found and what was wanted."""
    errors = error.errors()
    first = errors[0]
    location = _location(first)
    param = _path_text(location) or str(first["loc"][0])
    if first["type"] == "missing":
        message = f"{param}: found nothing, wanted a value"
    else:
        # A field of several types has an error for each of them.
        wanted = dict.fromkeys(_wanted(other) for other in errors if _location(other) == location)
        message = f"{param}: found {_shown(first.get('input'))}, wanted {' or '.join(wanted)}"
    return ApiError(400, message, param=param)


def _location(error: Mapping[str, Any]) -> list[int | str]:
    """Names and positions that lead to a field, without pydantic's own marks of types."""
    parts: list[int | str] = []
    for part in error["loc"][1:]:
        if isinstance(part, str) and (part in _TYPE_MARKS or "[" in part):
            break
        parts.append(part)
    return parts


def _wanted(error: Mapping[str, Any]) -> str:
    text: str = error["msg"]
    for start in ("Input should be ", "Value error, "):
        text = text.removeprefix(start)
    return text


def _path_text(location: list[int | str]) -> str:
    """messages[0].content of ("messages", 0, "content")."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _shown(value: Any) -> str:
    """A value of a request, short."""
    try:
        text = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
