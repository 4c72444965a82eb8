"""What all endpoints of one server share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import Request

from .errors import ApiError
from .options import ServerOptions

if TYPE_CHECKING:
    from .service import Service


class ServerState:
    """The options, and the service once its model is loaded."""

    def __init__(self, options: ServerOptions, service: Service | None = None) -> None:
        self.options = options
        self.loaded_service = service
        self.started = int(time.time())
        """Seconds of the Unix clock."""
        self.shutting_down = False

    @property
    def service(self) -> Service:
        """ApiError 503 while the model is being loaded."""
        if self.loaded_service is None:
            raise ApiError(503, "Loading model")
        return self.loaded_service


def get_state(request: Request) -> ServerState:
    """A dependency of endpoints."""
    state: ServerState = request.app.state.server
    return state


def get_service(request: Request) -> Service:
    """A dependency of endpoints."""
    return get_state(request).service
