"""The HTTP protocol of uvicorn with bounds: heads of requests have a size and a time, and what cannot be read
is answered in the form of all errors."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError, encode_json

MAX_HEAD = 64 * 1024
"""Bytes of request line and headers together."""

KEEP_ALIVE_S = 65
"""Seconds that a connection stays open without a request: longer than the usual proxy's 60."""

HEAD_SECONDS = 60.0
"""Time for them, from the start of the connection."""

_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)

SHUTDOWN_S = 3
"""Time that clients have, once the server ends, to read what was already answered."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._idle = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head or self._idle:
            data = _without_upgrade(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        self._in_head = True
        self._idle = False
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD:
            self._refuse(_head_too_large())
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._idle = True
        if self.cycle is not None:
            super().on_message_complete()

    def shutdown(self) -> None:
        """A request whose body is still to come is not waited for."""
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_started:
            self._refuse(ApiError(503, "The server is shutting down"))
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Called for what is no HTTP."""
        self._refuse(ApiError(400, msg))

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ApiError) -> None:
        """Answer, and end the connection."""
        body = encode_json(error.to_json())
        status = HTTPStatus(error.status_code)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def server_config(
    app: ASGIApp, key_file: Path | None = None, cert_file: Path | None = None
) -> uvicorn.Config:
    """How uvicorn serves the application: no log of accesses, no lifespan, no web sockets."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_keyfile=key_file,
        ssl_certfile=cert_file,
    )


def _without_upgrade(data: bytes) -> bytes:
    """The bytes of a head without its header Upgrade. Some clients offer HTTP/2 with every request, and the
    parser takes a request that does for one without a body; a server may ignore the offer (RFC 9110, 7.8)."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + end + rest


def _head_too_large() -> ApiError:
    return ApiError(431, f"headers: found more than {MAX_HEAD} bytes, wanted at most as many")
