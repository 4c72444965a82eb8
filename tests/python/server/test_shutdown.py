"""The end of the server beside clients that do not do their part."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from tests.python.server.conftest import WAIT_S, ServerProcess


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((str(parts.hostname), parts.port or 80), timeout=WAIT_S)


def test_a_body_that_does_not_come_holds_no_end_up(server_process: Callable[..., ServerProcess]) -> None:
    process = server_process()
    with connect(process.url()) as client:
        head = "POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\nExpect: 100-continue\r\n\r\n{"
        client.sendall(head.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0
        assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in "\n".join(process.lines)


def test_a_client_that_does_not_read_holds_no_end_up(server_process: Callable[..., ServerProcess]) -> None:
    process = server_process()
    with connect(process.url()) as client:
        body = json.dumps({"content": "a " * 1_000_000, "with_pieces": True}).encode()
        client.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0
    assert "Traceback" not in "\n".join(process.lines)
