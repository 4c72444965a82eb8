"""The ASGI application: all routers behind the gate."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from .. import __version__
from .errors import error_response
from .gate import Gate
from .state import ServerState
from .web import add_web_page

_ROUTERS = (
    "llama_k3.server.routes.meta",
    "llama_k3.server.routes.openai_chat",
    "llama_k3.server.routes.openai_completions",
    "llama_k3.server.routes.completion",
    "llama_k3.server.routes.tokens",
    "llama_k3.server.routes.slots",
    "llama_k3.server.routes.unsupported",
    "llama_k3.server.anthropic",
    "llama_k3.server.responses",
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
    return error_response(error, request.method, request.scope["path"])


def create_app(state: ServerState) -> FastAPI:
    """The application of one server. Its model may be loaded later: until then requests get 503."""
    app = _App(
        title="llama-server", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.server = state
    for router in _routers():
        app.include_router(router)
    if state.options.webui:
        add_web_page(app)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(RequestValidationError, _answer)
    app.add_middleware(Gate, options=state.options)
    return app


def _routers() -> Iterable[APIRouter]:
    for name in _ROUTERS:
        try:
            yield import_module(name).router
        except (ModuleNotFoundError, AttributeError):
            continue
