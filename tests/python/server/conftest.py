"""Servers to ask: in a thread of the tests' process, and as the command in a process of its own."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from llama_k3.server.app import create_app
from llama_k3.server.engine.engine import Engine
from llama_k3.server.engine.options import EngineOptions
from llama_k3.server.http import server_config
from llama_k3.server.options import ServerOptions
from llama_k3.server.service import Service
from llama_k3.server.state import ServerState

from llama_k3 import Model

MODEL_NAME = "tiny-k3"
WAIT_S = 60.0
"""A test that waits longer for the server has failed."""


@dataclass
class RunningServer:
    """A server and its parts. `client` asks it."""

    url: str
    state: ServerState
    service: Service
    client: httpx.Client

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        return self.client.post(path, json=body, **kwargs)

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        """The greedy answer to one message; it must succeed."""
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        reply = self.post("/v1/chat/completions", body)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """An ASGI application on a free port, in a thread: its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(server_config(app))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive()


@contextmanager
def running_server(
    model: Model, options: ServerOptions | None = None, engine: Any = None, **engine_options: Any
) -> Iterator[RunningServer]:
    """A server on the model; `engine`: in place of a real one."""
    options = options or ServerOptions()
    settings = {"n_ctx": 1024, "n_parallel": 4, "n_ubatch": 64, "cache_ram": 16 << 20, **engine_options}
    engine = engine or Engine(model, EngineOptions(**settings))
    try:
        service = Service(engine, model, MODEL_NAME, options.request_timeout)
        state = ServerState(options, service)
        with serve(create_app(state)) as url, httpx.Client(base_url=url, timeout=WAIT_S) as client:
            yield RunningServer(url, state, service, client)
        service.close()
    finally:
        engine.close()


@pytest.fixture(scope="session")
def server(model: Model) -> Iterator[RunningServer]:
    """One server for all tests that leave it as it was: four slots of 1024 tokens."""
    with running_server(model, ServerOptions(metrics=True)) as running:
        yield running


@pytest.fixture(scope="session")
def server_url(server: RunningServer) -> str:
    return server.url


@pytest.fixture
def make_server(model: Model) -> Iterator[Callable[..., RunningServer]]:
    """Makes servers of their own: make_server(options, n_ctx=...)."""
    with ExitStack() as stack:

        def make(*args: Any, **kwargs: Any) -> RunningServer:
            return stack.enter_context(running_server(kwargs.pop("model", model), *args, **kwargs))

        yield make


class ServerProcess:
    """llama-server as a process on a free port; `lines`: what it prints."""

    def __init__(self, model: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "llama_k3.cli.server", "-m", str(model), "--port", "0", "-c", "1024"]
        self.process = subprocess.Popen(
            [*command, "-t", "2", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, text: str) -> str:
        """The next line that has the text; AssertionError where the process ends before."""
        while True:
            line = self._queue.get(timeout=WAIT_S)
            assert line is not None, "\n".join(self.lines)
            self.lines.append(line)
            if text in line:
                return line

    def url(self) -> str:
        return self.wait_for("listening on ").rsplit(" ", 1)[1]

    def end(self) -> int:
        """Waits for the end: its status."""
        status = self.process.wait(WAIT_S)
        while (line := self._queue.get(timeout=WAIT_S)) is not None:
            self.lines.append(line)
        return status


@pytest.fixture
def server_process(tiny_gguf: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts the command: server_process("--metrics", env={...}).url()."""
    started: list[ServerProcess] = []

    def start(*flags: str, env: dict[str, str] | None = None, model: Path = tiny_gguf) -> ServerProcess:
        started.append(ServerProcess(model, *flags, env=env))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(WAIT_S)
