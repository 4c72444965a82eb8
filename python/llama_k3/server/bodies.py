"""Bodies of requests: strict JSON, whatever content type is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from .errors import ApiError

MAX_DEPTH = 64
"""Deepest nesting of lists and objects in a body."""


def _no_constant(name: str) -> NoReturn:
    raise ApiError(400, f"body: found {name}, wanted JSON (finite numbers)", param="body")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ApiError(400, f"body: found {text[:40]}, wanted a number that a double can hold", param="body")
    return value


def _integer(text: str) -> int:
    if len(text) > 40:
        raise ApiError(400, f"body: found an integer of {len(text)} digits, wanted at most 40", param="body")
    return int(text)


def parse_json(data: bytes) -> Any:
    """The value in a body. ApiError 400: not JSON, not UTF-8, nested too deeply, a number out of range."""
    try:
        value = json.loads(data, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise ApiError(
            400, f"body: found bytes that are not UTF-8 at {error.start}, wanted JSON", param="body"
        ) from None
    except json.JSONDecodeError as error:
        found = f"{error.msg} at character {error.pos}"
        raise ApiError(400, f"body: found text that is not JSON ({found})", param="body") from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def _too_deep() -> ApiError:
    return ApiError(400, f"body: found JSON of more than {MAX_DEPTH} levels, wanted fewer", param="body")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for container in level
            if isinstance(container, (list, dict))
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (list, dict))
        ]
        if not level:
            return
    raise _too_deep()


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


class JsonRoute(APIRoute):
    """A route whose body is read by parse_json."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            # As in llama.cpp a body is JSON, whatever type the client names; curl names another one.
            headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
            scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
            return await handler(_JsonRequest(scope, request.receive, request._send))

        return handle


def api_router() -> APIRouter:
    """A router for endpoints of this server."""
    return APIRouter(route_class=JsonRoute)
