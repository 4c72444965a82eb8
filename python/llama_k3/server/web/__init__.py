"""The web page at `/`: static files served from memory, with types, validators and security headers.

`index.html` is the page, everything else of `static/` lies under `/web/`. The page asks the API with
relative addresses, so that it works under a prefix, and loads nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SECURITY_HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class WebFile:
    """A file as it is sent. `etag`: of the content, so that it survives a restart."""

    content: bytes
    media_type: str
    etag: str

    def respond(self, request: Request) -> Response:
        """The file, or 304 when the client has it. The client asks again each time it uses it."""
        headers = {**SECURITY_HEADERS, "ETag": self.etag, "Cache-Control": "no-cache"}
        known = request.headers.get("if-none-match", "").split(",")
        if any(tag.strip().removeprefix("W/") in (self.etag, "*") for tag in known):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def read_web_files(folder: Path = STATIC) -> dict[str, WebFile]:
    """The files of the page by URL path. A file without a known type is left out."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix not in MEDIA_TYPES:
            continue
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        name = path.relative_to(folder).as_posix()
        url = "/" if name == "index.html" else f"/web/{quote(name)}"
        files[url] = WebFile(content, MEDIA_TYPES[path.suffix], etag)
    return files


WEB_FILES: Mapping[str, WebFile] = read_web_files()
"""What `add_web_page` serves. These paths hold nothing secret and need no API key: without them there is
nothing that could ask for one."""


def _route(path: str, file: WebFile) -> Route:
    async def send(request: Request) -> Response:
        return file.respond(request)

    return Route(path, send, methods=["GET", "HEAD"], include_in_schema=False)


def add_web_page(app: Starlette) -> None:
    """Serve `WEB_FILES` to GET and HEAD."""
    app.router.routes.extend(_route(path, file) for path, file in WEB_FILES.items())
