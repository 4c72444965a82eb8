"""llama.cpp's server in the package `xllamacpp`, for scripts that run as a process of their own.

llama.cpp brings its own ggml: nothing here or in what imports this may load llama_k3.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import xllamacpp


def server_params(path: str, n_ctx: int, threads: int) -> Any:
    """Of one slot on the CPU and a free port of this machine; the rest as llama.cpp has it."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = n_ctx
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.port = 0
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.warmup = False
    params.fit_params = False
    return params


def ask(server: Any, route: str, request: dict[str, Any], timeout: float = 600) -> dict[str, Any]:
    """One HTTP request to the server; `timeout` in seconds."""
    call = urllib.request.Request(
        f"{server.listening_address}/{route}",
        json.dumps(request).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(call, timeout=timeout) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def any_letter(server: Any) -> int:
    """A whole character: the server leaves probabilities out where the answer is part of one."""
    token: int = ask(server, "tokenize", {"content": "a", "add_special": False})["tokens"][0]
    return token
