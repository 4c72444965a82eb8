"""What all endpoints of one server share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from .errors import RETRY_AFTER_S, ApiError
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

    def check_loaded(self) -> None:
        """ApiError 503 while the model is being loaded."""
        if self.loaded_service is None:
            raise ApiError(503, "Loading model", headers={"Retry-After": str(RETRY_AFTER_S)})

    @property
    def service(self) -> Service:
        """ApiError 503 while the model is being loaded."""
        self.check_loaded()
        assert self.loaded_service is not None
        return self.loaded_service


def get_state(request: Request) -> ServerState:
    """A dependency of endpoints."""
    state: ServerState = request.app.state.server
    return state


def get_service(request: Request) -> Service:
    """A dependency of endpoints."""
    return get_state(request).service


State = Annotated[ServerState, Depends(get_state)]
"""The type of an endpoint's parameter that is the server's state."""
