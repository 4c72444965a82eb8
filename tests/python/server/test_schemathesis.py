"""Requests that schemathesis makes from the server's own OpenAPI: no 5xx, answers as they are described."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from llama_k3.server.options import ServerOptions

from tests.python.server.conftest import RunningServer

# A schema cannot say that a tool's result needs its call, or that an array of messages may not end in an
# assistant's: such requests fit the schema and are refused.
NOT_CHECKED = "positive_data_acceptance,unsupported_method"


def test_requests_from_the_openapi(make_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    saved = tmp_path / "slots"
    saved.mkdir()
    options = ServerOptions(metrics=True, props=True, slot_save_path=saved, n_predict=8)
    server = make_server(options)
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"]
    flags = [
        "--exclude-checks",
        NOT_CHECKED,
        "--max-examples",
        "20",
        "--generation-deterministic",
        "--no-shrink",
    ]
    done = subprocess.run(
        [*command, *flags, "--phases", "examples,coverage,fuzzing", "--workers", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "Selected: " in done.stdout, done.stdout[:3000]
    assert server.client.get("/health").status_code == 200
