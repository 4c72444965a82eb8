"""The application as a whole: paths, errors in one form, start, end, and what a failing part may not do."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_k3.cli.server import main
from llama_k3.errors import NonFiniteError
from llama_k3.server.app import create_app
from llama_k3.server.engine.engine import QueueFullError
from llama_k3.server.engine.request import Request, Result, Timings
from llama_k3.server.options import ServerOptions
from llama_k3.server.state import ServerState
from prometheus_client.parser import text_string_to_metric_families

from llama_k3 import Model
from tests.python.server.conftest import WAIT_S, RunningServer, ServerProcess, serve

CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
ENDLESS = {"prompt": "x", "ignore_eos": True, "stream": True}


def is_error(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of an answer in the form of all errors."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert {"code", "message", "type"} <= set(error) and error["message"]
    assert "Traceback" not in reply.text
    return error


def test_health_and_models(server: RunningServer) -> None:
    for path in ("/health", "/v1/health"):
        assert server.client.get(path).json() == {"status": "ok"}
    for path in ("/models", "/v1/models"):
        (model,) = server.client.get(path).json()["data"]
        assert model["id"] == "tiny-k3" and model["meta"]["n_ctx"] == 1024
        assert {"n_ctx_train", "n_params", "size"} <= set(model["meta"])


def test_properties(server: RunningServer) -> None:
    props = server.client.get("/props").json()
    assert props["total_slots"] == 4 and props["default_generation_settings"]["n_ctx"] == 1024
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["eos_token"] == "<|end_of_msg|>" and props["modalities"] == {"vision": False, "audio": False}
    assert "--props" in is_error(server.post("/props", {}), 501)["message"]


def test_properties_can_be_allowed_to_change(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(ServerOptions(props=True))
    assert running.post("/props", {}).json() == {"success": True}
    assert is_error(running.post("/props", {"top_k": 1}), 400)["param"] == "top_k"


def test_metrics(server: RunningServer, make_server: Callable[..., RunningServer]) -> None:
    def read() -> dict[str, float]:
        reply = server.client.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain")
        families = text_string_to_metric_families(reply.text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    before = read()
    answer = server.chat("Who are you?", cache_prompt=False)
    after = read()
    usage = answer["usage"]
    for name, count in (
        ("llamacpp:prompt_tokens_total", usage["prompt_tokens"]),
        ("llamacpp:tokens_predicted_total", usage["completion_tokens"]),
    ):
        assert after[name] - before[name] == count
    assert after["llamacpp:requests_processing"] == after["llamacpp:requests_deferred"] == 0
    wanted = "prompt_seconds_total tokens_predicted_seconds_total n_decode_total n_tokens_max"
    wanted += " prompt_tokens_seconds predicted_tokens_seconds n_busy_slots_per_decode"
    assert {"llamacpp:" + name for name in wanted.split()} <= set(after)
    assert {"llama_k3:cache_hits_total", "llama_k3:cached_tokens_total", "llama_k3:cache_ram_bytes"} <= set(
        after
    )
    assert "--metrics" in is_error(make_server().client.get("/metrics"), 501)["message"]


def test_paths_and_methods_that_are_not_there(server: RunningServer) -> None:
    is_error(server.client.get("/nope"), 404)
    is_error(server.client.get("/v1/chat/completions"), 405)
    is_error(server.client.delete("/health"), 405)
    assert server.client.delete("/health").headers["allow"] == "GET, HEAD"
    assert server.client.delete("/props").headers["allow"] == "GET, HEAD, POST"


def test_head_is_answered_as_get_without_the_body(server: RunningServer) -> None:
    reply = server.client.head("/health")
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["content-length"] == str(len(server.client.get("/health").content))


def test_an_offer_of_http_2_is_ignored(server: RunningServer) -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
    reply = server.post("/tokenize", {"content": "Hello"}, headers=offer)
    assert reply.json() == server.post("/tokenize", {"content": "Hello"}).json()
    for path in ("/infill", "/embeddings", "/v1/embeddings", "/rerank", "/v1/rerank", "/lora-adapters"):
        error = is_error(server.post(path, {"x": 1}), 501)
        assert path in error["message"] and error["type"] == "not_supported_error"
    is_error(server.client.get("/lora-adapters"), 501)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e400}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "model": "\\ud800", "max_tokens": "x"}',
    ],
)
def test_bodies_that_are_no_requests(server: RunningServer, data: bytes) -> None:
    for path in ("/v1/chat/completions", "/completion", "/tokenize"):
        is_error(server.client.post(path, content=data), 400)


def test_lone_surrogates_do_no_harm(server: RunningServer) -> None:
    body = b'{"messages": [{"role": "user", "content": "a\\ud800b"}], "max_tokens": 3, "temperature": 0}'
    assert server.client.post("/v1/chat/completions", content=body).status_code in (200, 400)
    body = b'{"prompt": "a\\ud800b", "n_predict": 1, "stop": ["\\udfff"]}'
    assert server.client.post("/completion", content=body).status_code in (200, 400)


def test_the_content_type_does_not_matter(server: RunningServer) -> None:
    data = json.dumps(CHAT).encode()
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"):
        reply = server.client.post("/v1/chat/completions", content=data, headers={"content-type": kind})
        assert reply.status_code == 200, reply.text


def test_openapi_names_errors(server: RunningServer) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    for path in ("/v1/chat/completions", "/completion", "/v1/completions", "/tokenize", "/slots/{id_slot}"):
        assert {"200", "400", "401", "413", "500", "503"} <= set(paths[path]["post"]["responses"])
        assert "422" not in paths[path]["post"]["responses"]


def test_a_server_that_loads_says_so(model: Model) -> None:
    state = ServerState(ServerOptions())
    with serve(create_app(state)) as url, httpx.Client(base_url=url) as client:
        for reply in (
            client.get("/health"),
            client.post("/v1/chat/completions", json=CHAT),
            client.get("/slots"),
        ):
            assert is_error(reply, 503)["message"] == "Loading model"
        assert client.get("/").status_code == 200


class FailingEngine:
    """Behaves like an engine that cannot do one thing."""

    def __init__(self, error: Exception | None = None, result_error: NonFiniteError | None = None) -> None:
        self._error = error
        self._result_error = result_error

    def slots(self) -> list[Any]:
        if isinstance(self._error, ZeroDivisionError) and hasattr(self, "_started"):
            raise self._error
        self._started = True

        class Slot:
            n_ctx = 1024

        return [Slot()]

    def submit(self, request: Request) -> None:
        if self._error is not None:
            raise self._error
        timings = Timings(0, 0, 0.0, 0, 0.0)
        request.sink.on_end(Result("error", 0, len(request.prompt), 0, timings, self._result_error))

    def cancel(self, request: Request) -> None: ...

    def close(self) -> None: ...


def test_a_full_queue(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(engine=FailingEngine(QueueFullError("queue: found 512 requests, wanted fewer")))
    reply = running.post("/v1/chat/completions", CHAT)
    is_error(reply, 503)
    assert int(reply.headers["retry-after"]) >= 1


def test_errors_of_the_server_are_numbers(
    make_server: Callable[..., RunningServer], caplog: pytest.LogCaptureFixture
) -> None:
    running = make_server(engine=FailingEngine(ZeroDivisionError("secret text")))
    with caplog.at_level(logging.ERROR):
        for reply in (running.post("/v1/chat/completions", CHAT), running.client.get("/slots")):
            error = is_error(reply, 500)
            assert "secret" not in reply.text and error["error_id"] in caplog.text
    assert "secret text" in caplog.text
    assert running.client.get("/health").status_code == 200


def test_an_answer_that_fails_is_told_in_the_stream(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(engine=FailingEngine(result_error=NonFiniteError("logits: found nan")))
    is_error(running.post("/v1/chat/completions", CHAT), 500)
    reply = running.post("/v1/chat/completions", {**CHAT, "stream": True})
    assert reply.status_code == 200
    last = reply.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == 500


def wait_for_slots(server: RunningServer, state: str) -> None:
    """Until each slot is in the state; the requests themselves pace the looks."""
    end = time.monotonic() + WAIT_S
    while any(slot["state"] != state for slot in server.client.get("/slots").json()):
        assert time.monotonic() < end


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_slot(
    make_server: Callable[..., RunningServer], streamed: bool
) -> None:
    running = make_server(n_ctx=4096, n_parallel=1)
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps({**ENDLESS, "stream": streamed}).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /completion HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_for_slots(running, "generating")
    wait_for_slots(running, "idle")
    assert running.service.engine.stats().predicted_tokens < 4095
    assert running.chat("Who are you?")["choices"][0]["finish_reason"] == "stop"


def test_a_leaving_client_does_not_touch_others(server: RunningServer) -> None:
    alone = server.chat("What is 27 + 15?")["choices"]
    answers: list[Any] = []
    other = threading.Thread(target=lambda: answers.append(server.chat("What is 27 + 15?")["choices"]))
    with server.client.stream("POST", "/completion", json={**ENDLESS, "n_predict": 900}) as reply:
        lines = reply.iter_lines()
        next(lines)
        other.start()
    other.join(WAIT_S)
    assert answers == [alone]


def test_requests_wait_for_the_only_slot(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(n_parallel=1)
    answers: list[Any] = []

    def ask(number: int) -> None:
        answers.append(running.chat(f"What is {number} + 15?")["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(10, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(answers) == sorted(f"{number} + 15 = {number + 15}." for number in range(10, 16))
    no_slot = running.client.get("/slots", params={"fail_on_no_slot": "1"})
    assert no_slot.status_code == 200


def test_one_long_answer_ends_alone(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(n_ctx=256)
    ends: dict[str, str] = {}

    def ask(name: str, body: dict[str, Any]) -> None:
        ends[name] = running.post("/completion", body).json()["stop_type"]

    prompt = running.post("/apply-template", CHAT).json()["prompt"]
    jobs = {"long": {"prompt": "x", "ignore_eos": True}}
    jobs |= {f"short {i}": {"prompt": prompt, "temperature": 0} for i in range(3)}
    threads = [threading.Thread(target=ask, args=job) for job in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert ends == {"long": "limit", **{f"short {i}": "eos" for i in range(3)}}


def test_a_request_has_its_time(make_server: Callable[..., RunningServer]) -> None:
    running = make_server(ServerOptions(request_timeout=0.2), n_ctx=4096)
    error = is_error(running.post("/completion", {**ENDLESS, "stream": False}), 504)
    assert error["type"] == "timeout_error"
    reply = running.post("/completion", ENDLESS)
    assert '"timeout_error"' in reply.text.strip().split("\n\n")[-1]


def test_streams_that_say_nothing_are_kept_open(make_server: Callable[..., RunningServer]) -> None:
    class Silent(FailingEngine):
        def submit(self, request: Request) -> None:
            self.request = request

        def cancel(self, request: Request) -> None:
            request.sink.on_end(Result("cancelled", 0, 1, 0, Timings(0, 0, 0.0, 0, 0.0)))

    running = make_server(ServerOptions(ping_interval=0.01), engine=Silent())
    with running.client.stream("POST", "/completion", json=ENDLESS) as reply:
        lines = reply.iter_lines()
        assert next(lines) == ": ping"


def test_the_prefix_of_all_paths(make_server: Callable[..., RunningServer]) -> None:
    client = make_server(ServerOptions(api_prefix="/ai/k3")).client
    assert client.get("/ai/k3/health").status_code == 200
    assert client.get("/ai/k3/").headers["content-type"].startswith("text/html")
    assert client.post("/ai/k3/v1/chat/completions", json=CHAT).status_code == 200
    for path in ("/health", "/ai/k3x/health", "/ai"):
        is_error(client.get(path), 404)
    redirect = client.get("/ai/k3")
    assert redirect.status_code == 307 and redirect.headers["location"] == "/ai/k3/"


def test_the_command_serves_and_ends(server_process: Callable[..., ServerProcess]) -> None:
    process = server_process("--metrics", "--no-webui", "--alias", "mine")
    url = process.url()
    assert httpx.get(url + "/v1/models").json()["data"][0]["id"] == "mine"
    assert httpx.get(url + "/").status_code == 404
    reply = httpx.post(url + "/v1/chat/completions", json=CHAT, timeout=WAIT_S).json()
    assert "Tiny K3" in reply["choices"][0]["message"]["content"]
    with httpx.stream("POST", url + "/completion", json=ENDLESS, timeout=WAIT_S) as stream:
        lines = stream.iter_lines()
        next(lines)
        process.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert "shutting down" in rest[-1] or '"stop":true' in rest[-1]
    assert process.end() == 0
    assert "Traceback" not in "\n".join(process.lines)


def test_two_signals_kill(server_process: Callable[..., ServerProcess]) -> None:
    process = server_process()
    process.url()
    process.process.send_signal(signal.SIGINT)
    process.process.send_signal(signal.SIGINT)
    assert process.end() in (0, 130)


def test_starts_that_fail(
    server: RunningServer, tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model")
    port = server.url.rsplit(":", 1)[1]
    for flags, text in (
        (["--port", port], port),
        (["--host", "256.1.1.1"], "256.1.1.1"),
        (["--ssl-key-file", str(bad)], "--ssl-cert-file"),
        (["--ssl-key-file", str(bad), "--ssl-cert-file", str(bad)], "--ssl-cert-file"),
        (["--api-key-file", str(tmp_path / "none")], "--api-key-file"),
        (["--api-key-file", str(bad), "--log-file", str(tmp_path / "no" / "log")], "--log-file"),
    ):
        assert main(["-m", str(tiny_gguf), *flags]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and text in line


@pytest.mark.parametrize("flags", [["-ctk", "f16", "-ctv", "bf16"], ["-m", "none.gguf"]])
def test_loads_that_fail(server_process: Callable[..., ServerProcess], flags: list[str]) -> None:
    process = server_process(*flags)
    assert process.end() == 1
    assert process.lines[-1].startswith("error: ")
    assert "Traceback" not in "\n".join(process.lines)
