"""The ASGI application: all routers behind the gate."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from .. import __version__
from . import anthropic, responses
from .errors import error_response
from .gate import Gate
from .routes import completion, meta, openai_chat, openai_completions, slots, tokens, unsupported
from .routes.common import ERRORS
from .state import ServerState
from .web import add_web_page

_ROUTERS = (
    meta.router,
    openai_chat.router,
    openai_completions.router,
    completion.router,
    tokens.router,
    slots.router,
    anthropic.router,
    responses.router,
    unsupported.router,
)


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """FastAPI's own, but for its 422: here a wrong field is a 400."""
        if self.openapi_schema is None:
            schema = super().openapi()
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                schema.get("components", {}).get("schemas", {}).pop(name, None)
        assert self.openapi_schema is not None
        return self.openapi_schema


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        # Each route knows its own method alone; HEAD is answered where GET is.
        routes, scope = request.app.routes, request.scope
        methods = [
            allowed
            for method, allowed in (("GET", "GET, HEAD"), ("POST", "POST"))
            if any(route.matches({**scope, "method": method})[0] == Match.FULL for route in routes)
        ]
        error.headers = {"Allow": ", ".join(methods)}
    return error_response(error, request.method, request.scope["path"])


def create_app(state: ServerState) -> FastAPI:
    """The application of one server. Its model may be loaded later: until then requests get 503."""
    app = _App(
        title="llama-server",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,
    )
    app.state.server = state
    for router in _ROUTERS:
        app.include_router(router)
    if state.options.webui:
        add_web_page(app)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(RequestValidationError, _answer)
    app.add_middleware(Gate, options=state.options)
    return app
