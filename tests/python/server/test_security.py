"""Keys, public paths, origins, sizes: what a stranger can and cannot do."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_k3.server import gate
from llama_k3.server.http import MAX_HEAD
from llama_k3.server.options import ServerOptions

from tests.python.server.conftest import WAIT_S, RunningServer, ServerProcess
from tests.python.server.test_app import is_error

CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 3}
PRIVATE = ("/props", "/metrics", "/slots", "/v1/models", "/openapi.json", "/nope", "/web", "/healthy", "/v1")


@pytest.mark.parametrize("prefix", ["", "/k3"])
def test_a_key_is_needed_but_for_public_paths(make_server: Callable[..., RunningServer], prefix: str) -> None:
    running = make_server(ServerOptions(api_keys=("one", "two"), metrics=True, api_prefix=prefix))
    client = running.client
    for path in ("/", "/health", "/v1/health", "/web/favicon.svg"):
        assert client.get(prefix + path).status_code == 200, path
    for path in PRIVATE:
        error = is_error(client.get(prefix + path), 401)
        assert error["code"] == "invalid_api_key" and error["type"] == "authentication_error"
    is_error(client.post(prefix + "/v1/chat/completions", json=CHAT), 401)
    is_error(client.post(prefix + "/health/../v1/chat/completions", json=CHAT), 401)
    for headers in (
        {"Authorization": "Bearer one"},
        {"Authorization": "bearer two"},
        {"X-Api-Key": "two"},
    ):
        assert client.get(prefix + "/props", headers=headers).status_code == 200, headers
    for headers in (
        {"Authorization": "Bearer on"},
        {"Authorization": "Bearer one1"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic one"},
        {"Authorization": "one"},
        {"X-Api-Key": ""},
        {"X-Api-Key": "one,two"},
        {"Authorization": "Bearer \u00e9"},
    ):
        encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        is_error(client.get(prefix + "/props", headers=encoded), 401)


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = gate.hmac.compare_digest

    def count(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(gate.hmac, "compare_digest", count)
    keys = gate.Keys(["a", "b" * 100, "c"])
    for key in (b"a", b"c", b"none", b""):
        compared.clear()
        assert keys.allow(key) == (key in (b"a", b"c"))
        assert len(compared) == 3


def test_public_paths_are_one_list() -> None:
    public = [path for path in (*gate.PUBLIC_PATHS, "/web/js/main.js") if gate.is_public(path)]
    assert public == [*gate.PUBLIC_PATHS, "/web/js/main.js"]
    for path in (*PRIVATE, "", "//", "/health/", "/index.html", "/v1/chat/completions"):
        assert not gate.is_public(path)


def test_pages_of_other_sites_are_refused(
    server: RunningServer, make_server: Callable[..., RunningServer]
) -> None:
    own = server.url
    port = own.rsplit(":", 1)[1]
    assert server.post("/tokenize", {"content": "a"}, headers={"Origin": own}).status_code == 200
    for origin in ("http://evil.example", "null", f"http://localhost:{port}", own + "1", "http://127.0.0.1"):
        reply = server.post("/tokenize", {"content": "a"}, headers={"Origin": origin})
        is_error(reply, 403)
        assert "access-control-allow-origin" not in reply.headers
    rebound = {"Origin": f"http://evil.example:{port}", "Host": f"evil.example:{port}"}
    is_error(server.post("/tokenize", {"content": "a"}, headers=rebound), 403)
    is_error(server.client.options("/tokenize", headers={"Origin": "http://evil.example"}), 403)
    open_one = make_server(ServerOptions(cors_origins=("http://good.example",)))
    good = {"Origin": "http://good.example"}
    reply = open_one.post("/tokenize", {"content": "a"}, headers=good)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "http://good.example"
    preflight = open_one.client.options("/tokenize", headers=good)
    assert preflight.status_code == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]
    is_error(open_one.post("/tokenize", {"content": "a"}, headers={"Origin": "http://evil.example"}), 403)


def raw(url: str, *parts: bytes) -> bytes:
    """What the server says to these bytes until it closes or nothing more is owed."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            data = connection.recv(65536)
            if not data:
                break
            answer += data
        return answer


def test_bodies_are_bounded(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(ServerOptions(max_body=10_000))
    fits = {"content": "a" * 9_000}
    assert running.post("/tokenize", fits).status_code == 200
    is_error(running.post("/tokenize", {"content": "a" * 10_000}), 413)
    # Told by its length alone: nothing of it is read.
    head = b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    for length in (2**31, 2**63, 10**100):
        answer = raw(running.url, head % length)
        assert answer.startswith(b"HTTP/1.1 413 ") or answer.startswith(b"HTTP/1.1 400 ")
    # No length: counted as it comes.
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    answer = raw(
        running.url,
        b"POST /completion HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        *[chunk] * 4,
    )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert running.post("/tokenize", fits).status_code == 200


def test_heads_are_bounded(server: RunningServer) -> None:
    for head in (
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * MAX_HEAD + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Endless: " + b"a" * (4 * MAX_HEAD),
        b"GET /health HTTP/1.1\r\nHost: x\r\n"
        + b"".join(b"X-%d: a\r\n" % i for i in range(10_000))
        + b"\r\n",
        b"GET /" + b"a" * (2 * MAX_HEAD) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        answer = raw(server.url, *[head[i : i + 8192] for i in range(0, len(head), 8192)])
        assert answer.startswith(b"HTTP/1.1 431 "), answer[:100]
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == 431
    assert server.client.get("/health", headers={"X-Long": "a" * 1000}).status_code == 200


@pytest.mark.parametrize("data", [b"\x00\x01\x02\r\n\r\n", b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_http(server: RunningServer, data: bytes) -> None:
    answer = raw(server.url, data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == 400
    assert server.client.get("/health").status_code == 200


def test_a_body_that_never_ends_is_given_up(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(ServerOptions(request_timeout=0.1))
    answer = raw(running.url, b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_texts_of_others_are_not_shown(server: RunningServer) -> None:
    server.chat("A secret of mine")
    assert "secret" not in server.client.get("/slots").text


def test_tls(server_process: Callable[..., ServerProcess], tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += f" -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    keys = tmp_path / "keys"
    keys.write_text("# those who may\n\nfriend\n")
    url = server_process(
        *("--ssl-key-file", str(key), "--ssl-cert-file", str(certificate), "--api-key-file", str(keys)),
        env={"LLAMA_API_KEY": "first,second"},
    ).url()
    assert url.startswith("https://127.0.0.1:")
    with httpx.Client(verify=ssl.create_default_context(cafile=str(certificate)), base_url=url) as client:
        assert client.get("/health").status_code == 200
        for token, status in (("first", 200), ("second", 200), ("friend", 200), ("# those who may", 401)):
            headers: dict[str, Any] = {"Authorization": f"Bearer {token}"}
            assert client.get("/props", headers=headers).status_code == status
