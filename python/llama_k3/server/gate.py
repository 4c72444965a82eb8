"""What every request passes before its endpoint: prefix, origin, key, size of the body; and the last resort
for exceptions. One plain ASGI layer, which costs a stream nothing per chunk."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, error_response
from .options import ServerOptions

logger = logging.getLogger(__name__)

PUBLIC_PATHS = ("/", "/web/", "/favicon.ico", "/health", "/v1/health")
"""Paths (after the prefix) that need no API key: the web page, its files, and whether the server is up. One
that ends in a slash stands for all below it, but `/` for itself alone."""

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Api-Key, *",
    "Access-Control-Max-Age": "600",
}
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def is_public(path: str) -> bool:
    """Whether a path (after the prefix) needs no key."""
    return any(
        path == public or (len(public) > 1 and public[-1] == "/" and path.startswith(public))
        for public in PUBLIC_PATHS
    )


class Keys:
    """API keys, compared in constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def allow(self, key: bytes) -> bool:
        """Whether this is one of the keys; takes as long for a wrong as for a right one."""
        given = _digest(key)
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Gate:
    """ASGI application around the endpoints."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._keys = Keys(options.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        extra_headers: list[tuple[bytes, bytes]] = []

        async def sending(message: Message) -> None:
            nonlocal started
            if not started:
                started = True
                message = {**message, "headers": [*message.get("headers", ()), *extra_headers]}
            await send(message)

        path = scope["path"]
        try:
            if path == self._options.api_prefix:
                # The page's addresses are relative to a path that ends in a slash.
                await RedirectResponse(path + "/")(scope, receive, sending)
                return
            path = self._without_prefix(path)
            # uvicorn leaves the body out of the answer to HEAD, which is else that to GET.
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "raw_path": path.encode(), "method": method}
            headers = dict(scope["headers"])
            extra_headers += self._check_origin(headers)
            if extra_headers and scope["method"] == "OPTIONS":
                await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, sending)
                return
            self._check_key(path, headers)
            await self._app(scope, self._limited(headers, receive), sending)
        except Exception as error:
            if started:
                logger.exception("%s %s: failed in the middle of its answer", scope["method"], path)
                raise
            await error_response(error, scope["method"], path)(scope, receive, sending)

    def _without_prefix(self, path: str) -> str:
        prefix = self._options.api_prefix
        if not prefix:
            return path
        if not path.startswith(prefix + "/"):
            raise ApiError(404, f"{path}: found no such path, wanted one below {prefix}")
        return path[len(prefix) :]

    def _check_origin(self, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """Web pages of other sites may not use a visitor's server, but for those of `cors_origins`, whose
        headers are returned."""
        given = headers.get(b"origin")
        if given is None:
            return []
        origin = given.decode("latin-1")
        allowed = self._options.cors_origins
        if "*" in allowed or origin in allowed:
            return [(b"access-control-allow-origin", given), (b"vary", b"Origin")]
        host = headers.get(b"host", b"").decode("latin-1")
        site = urlsplit(origin)
        if site.netloc != host:
            raise ApiError(
                403, f"Origin: found {origin!r}, wanted this server's own pages (or one of --cors-origins)"
            )
        if self._options.loopback and not self._keys and site.hostname not in _LOCAL_NAMES:
            # A foreign name that leads to this machine: DNS rebinding, or a proxy.
            raise ApiError(
                403, f"Host: found {host!r}, wanted localhost, or an API key (--api-key) for this server"
            )
        return []

    def _check_key(self, path: str, headers: dict[bytes, bytes]) -> None:
        if not self._keys or is_public(path):
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        if not self._keys.allow(given):
            found = "an unknown API key" if given else "no API key"
            raise ApiError(
                401,
                f"Authorization: found {found}, wanted one of the server's (Bearer or X-Api-Key)",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _limited(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """`receive` that refuses a body beyond the limit; one that says so is refused unread."""
        limit = self._options.max_body
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > limit:
            raise _too_large(length.decode("latin-1")[:20], limit)
        size = 0
        whole = False

        async def receiving() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._options.request_timeout)
            except asyncio.TimeoutError:
                raise ApiError(408, "body: found its beginning, wanted all of it in time") from None
            whole = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > limit:
                raise _too_large(f"more than {limit}", limit)
            return message

        return receiving


def _too_large(found: str, limit: int) -> ApiError:
    return ApiError(
        413,
        f"body: found {found} bytes, wanted at most {limit}",
        param="body",
        headers={"Connection": "close"},
    )
