"""What a server is started with, besides its engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .engine.request import Sampling

ReasoningFormat = Literal["none", "deepseek", "auto"]


@dataclass(frozen=True)
class ServerOptions:
    """`api_keys`: one of them has to come with every request but those for public paths; empty: no key is
    needed. `api_prefix`: begins every path, without a slash at its end. `slot_save_path`: folder of saved
    slots; None: no saving. `request_timeout`: seconds. `max_body`: bytes. `reasoning_budget`: tokens of
    reasoning where a request says nothing, -1: no limit. `loopback`: only programs of this machine reach
    the server. `cors_origins`: origins (scheme://host:port, or *) whose pages may use the server.
    `ping_interval`: seconds after which a silent stream sends a comment.
    """

    model_path: Path | None = None
    api_keys: tuple[str, ...] = ()
    api_prefix: str = ""
    slot_save_path: Path | None = None
    request_timeout: float | None = 3600.0
    max_body: int = 32 << 20
    metrics: bool = False
    props: bool = False
    slots: bool = True
    webui: bool = True
    loopback: bool = True
    cors_origins: tuple[str, ...] = ()
    ping_interval: float | None = 30.0
    sampling: Sampling = Sampling()
    n_predict: int = -1
    ignore_eos: bool = False
    cache_prompt: bool = True
    reasoning_format: ReasoningFormat = "auto"
    reasoning_budget: int = -1
    reasoning_effort: str | None = None
    thinking: bool = True
