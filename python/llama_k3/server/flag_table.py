"""The flags of llama-server and their environment variables, under llama.cpp's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..context import KV_TYPES
from .flag_values import (
    Reader,
    integer_value,
    key_list,
    mebibytes,
    number_value,
    one_of,
    only,
    path_value,
    prefix_value,
    text_value,
)
from .schemas.chat import EFFORTS


@dataclass(frozen=True)
class Flag:
    """`read`: the value in a text; None: a switch, which sets `value`. `off`: names that set the contrary of
    a switch. `variable`: without LLAMA_ARG_. `repeats`: values are collected in a list. `always`: a switch
    that says what happens anyway and cannot be off."""

    names: tuple[str, ...]
    dest: str
    help: str
    variable: str | None = None
    read: Reader | None = None
    default: Any = None
    metavar: str = "N"
    value: Any = True
    off: tuple[str, ...] = ()
    repeats: bool = False
    always: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """Full names of its environment variables; that of --api-key is llama.cpp's exception."""
        if self.variable is None:
            return ()
        return (self.variable,) if self.variable == "LLAMA_API_KEY" else ("LLAMA_ARG_" + self.variable,)


_MODEL = (
    Flag(
        ("-m", "--model"), "model", "GGUF file (any part of a split one)", "MODEL", path_value, None, "FILE"
    ),
    Flag(
        ("-a", "--alias"),
        "alias",
        "name in the API (the file's)",
        "ALIAS",
        text_value,
        None,
        "NAME",
    ),
    Flag(
        ("-t", "--threads"),
        "threads",
        "threads of the computation (-1: all CPUs)",
        "THREADS",
        integer_value(-1, 4096),
        -1,
    ),
    Flag(
        ("--mmap",),
        "mmap",
        "map the file; --no-mmap: read it, which starts slower and decodes faster",
        "MMAP",
        off=("--no-mmap",),
        default=True,
    ),
    Flag(
        ("-lm", "--load-mode"),
        "load_mode",
        "auto, mmap, or none (as --no-mmap)",
        "LOAD_MODE",
        one_of("auto", "mmap", "none"),
        "auto",
        "MODE",
    ),
    Flag(("--offline",), "offline", "nothing is downloaded", "OFFLINE", always=True),
)
_CONTEXT = (
    Flag(
        ("-c", "--ctx-size"),
        "ctx_size",
        "tokens of context of each slot (0: the model's); memory is taken as it is used",
        "CTX_SIZE",
        integer_value(0),
        0,
    ),
    Flag(
        ("-n", "--predict", "--n-predict"),
        "n_predict",
        "most tokens of an answer (-1: no limit)",
        "N_PREDICT",
        integer_value(-1),
        -1,
    ),
    Flag(
        ("-np", "--parallel"),
        "parallel",
        "slots: answers made at once (-1: 4)",
        "N_PARALLEL",
        integer_value(-1, 4096),
        -1,
    ),
    Flag(
        ("-b", "--batch-size"),
        "batch_size",
        "most tokens computed at once, as -ub: the smaller one counts",
        "BATCH",
        integer_value(1, 1 << 20),
        2048,
    ),
    Flag(
        ("-ub", "--ubatch-size"),
        "ubatch_size",
        "tokens computed at once",
        "UBATCH",
        integer_value(1, 1 << 20),
        512,
    ),
    Flag(
        ("-ctk", "--cache-type-k"),
        "cache_type_k",
        f"type of the cached rows: {', '.join(KV_TYPES)}",
        "CACHE_TYPE_K",
        one_of(*KV_TYPES),
        None,
        "TYPE",
    ),
    Flag(
        ("-ctv", "--cache-type-v"),
        "cache_type_v",
        "the same as -ctk: keys and values are one row here",
        "CACHE_TYPE_V",
        one_of(*KV_TYPES),
        None,
        "TYPE",
    ),
    Flag(
        ("-cb", "--cont-batching"),
        "cont_batching",
        "requests share batches",
        "CONT_BATCHING",
        always=True,
    ),
    Flag(("--no-context-shift",), "no_context_shift", "a full context ends the answer", always=True),
    Flag(("-no-kvu", "--no-kv-unified"), "no_kv_unified", "each slot has its own context", always=True),
    Flag(("--no-warmup",), "no_warmup", "there is no empty run after the load", always=True),
)
_CACHE = (
    Flag(
        ("--cache-prompt",),
        "cache_prompt",
        "reuse what earlier requests computed, where a request says nothing",
        "CACHE_PROMPT",
        off=("--no-cache-prompt",),
        default=True,
    ),
    Flag(
        ("--cache-reuse",),
        "cache_reuse",
        "0 alone",
        "CACHE_REUSE",
        only("0", "a recurrent state cannot be shifted"),
        None,
    ),
    Flag(
        ("-cram", "--cache-ram"),
        "cache_ram",
        "MiB of memory for parked sequences and snapshots (8192; -1: no limit, 0: none)",
        "CACHE_RAM",
        mebibytes,
        8192 << 20,
    ),
    Flag(
        ("-cms", "--checkpoint-min-step"),
        "checkpoint_min_step",
        "least tokens between two snapshots at message ends",
        "CHECKPOINT_MIN_SPACING_NT",
        integer_value(0),
        256,
    ),
    Flag(
        ("--snapshot-every",),
        "snapshot_every",
        "tokens between the snapshots within a long message",
        "SNAPSHOT_EVERY",
        integer_value(1),
        8192,
    ),
    Flag(
        ("--cache-disk",),
        "cache_disk",
        "folder for sequences that --cache-ram has no room for",
        "CACHE_DISK",
        path_value,
        None,
        "DIR",
    ),
    Flag(
        ("--cache-disk-size",),
        "cache_disk_size",
        "most MiB in --cache-disk (65536; -1: no limit)",
        "CACHE_DISK_SIZE",
        mebibytes,
        65536 << 20,
    ),
    Flag(("--cache-idle-slots",), "cache_idle_slots", "sequences of idle slots are kept", always=True),
    Flag(
        ("--slot-save-path",),
        "slot_save_path",
        "folder of saved slots (none: slots cannot be saved)",
        "SLOT_SAVE_PATH",
        path_value,
        None,
        "DIR",
    ),
)
_HTTP = (
    Flag(("--host",), "host", "address to listen on (127.0.0.1)", "HOST", text_value, "127.0.0.1", "HOST"),
    Flag(("--port",), "port", "port (8080; 0: a free one)", "PORT", integer_value(0, 65535), 8080),
    Flag(("--api-prefix",), "api_prefix", "beginning of every path", "API_PREFIX", prefix_value, "", "PATH"),
    Flag(
        ("--api-key",),
        "api_key",
        "keys, one of which every request needs; may be given again",
        "LLAMA_API_KEY",
        key_list,
        None,
        "KEYS",
        repeats=True,
    ),
    Flag(
        ("--api-key-file",),
        "api_key_file",
        "file with such keys, one a line; # begins a comment",
        "API_KEY_FILE",
        path_value,
        None,
        "FILE",
    ),
    Flag(
        ("--ssl-key-file",),
        "ssl_key_file",
        "TLS key, PEM",
        "SSL_KEY_FILE",
        path_value,
        None,
        "FILE",
    ),
    Flag(
        ("--ssl-cert-file",),
        "ssl_cert_file",
        "TLS certificate, PEM",
        "SSL_CERT_FILE",
        path_value,
        None,
        "FILE",
    ),
    Flag(
        ("--cors-origins",),
        "cors_origins",
        "sites whose pages may use the server, by commas (none; *: all)",
        "CORS_ORIGINS",
        text_value,
        "",
        "ORIGINS",
    ),
    Flag(
        ("-to", "--timeout"),
        "timeout",
        "seconds after which a request is ended",
        "TIMEOUT",
        integer_value(1),
        3600,
    ),
    Flag(
        ("--sse-ping-interval",),
        "sse_ping_interval",
        "seconds after which a silent stream says that it lives (-1: never)",
        "SSE_PING_INTERVAL",
        integer_value(-1),
        30,
    ),
    Flag(
        ("--threads-http",),
        "threads_http",
        "threads that render and tokenize prompts (-1: 2)",
        "THREADS_HTTP",
        integer_value(-1, 256),
        -1,
    ),
    Flag(("--metrics",), "metrics", "serve /metrics for Prometheus", "ENDPOINT_METRICS"),
    Flag(("--props",), "props", "take POST /props", "ENDPOINT_PROPS"),
    Flag(("--slots",), "slots", "serve /slots", "ENDPOINT_SLOTS", off=("--no-slots",), default=True),
    Flag(
        ("--webui", "--ui"), "webui", "the web page at /", "UI", off=("--no-webui", "--no-ui"), default=True
    ),
)
_CHAT = (
    Flag(("--jinja",), "jinja", "chats are rendered for the model", "JINJA", always=True),
    Flag(
        ("--reasoning-format",),
        "reasoning_format",
        "where reasoning goes: none (into the content, in <think> tags), deepseek or auto "
        "(reasoning_content)",
        "THINK",
        one_of("none", "deepseek", "auto"),
        "auto",
        "FORMAT",
    ),
    Flag(
        ("-rea", "--reasoning"),
        "reasoning",
        "whether the model thinks: on, off or auto (on)",
        "REASONING",
        one_of("on", "off", "auto"),
        "auto",
        "MODE",
    ),
    Flag(
        ("--reasoning-effort",),
        "reasoning_effort",
        f"how much it thinks where a request says nothing: default, {', '.join(EFFORTS)}",
        "REASONING_EFFORT",
        one_of("default", *EFFORTS),
        "default",
        "LEVEL",
    ),
    Flag(
        ("--reasoning-budget",),
        "reasoning_budget",
        "most tokens of reasoning (-1: no limit, 0: none)",
        "THINK_BUDGET",
        integer_value(-1),
        -1,
    ),
    Flag(
        ("--reasoning-preserve",),
        "reasoning_preserve",
        "earlier reasoning is kept",
        "REASONING_PRESERVE",
        always=True,
    ),
)
_SAMPLING = (
    Flag(
        ("--temp", "--temperature"),
        "temp",
        "temperature (0: the likeliest token)",
        "TEMPERATURE",
        number_value(0, 100),
        0.8,
    ),
    Flag(("--top-k",), "top_k", "keep the N likeliest tokens (0: all)", "TOP_K", integer_value(-1), 40),
    Flag(("--top-p",), "top_p", "keep the likeliest up to N (1: all)", "TOP_P", number_value(0, 1), 0.95),
    Flag(
        ("--min-p",),
        "min_p",
        "drop tokens below N times the likeliest (0: none)",
        "MIN_P",
        number_value(0, 1),
        0.05,
    ),
    Flag(
        ("--repeat-last-n",),
        "repeat_last_n",
        "tokens that penalties look back on (-1: all)",
        None,
        integer_value(-1),
        64,
    ),
    Flag(
        ("--repeat-penalty",),
        "repeat_penalty",
        "penalty of tokens that were there (1: none)",
        "REPEAT_PENALTY",
        number_value(0.01, 100),
        1.0,
    ),
    Flag(
        ("--presence-penalty",),
        "presence_penalty",
        "penalty of tokens that were there at all",
        "PRESENCE_PENALTY",
        number_value(-100, 100),
        0.0,
    ),
    Flag(
        ("--frequency-penalty",),
        "frequency_penalty",
        "penalty of tokens for each time they were there",
        "FREQUENCY_PENALTY",
        number_value(-100, 100),
        0.0,
    ),
    Flag(
        ("--samplers",),
        "samplers",
        "the steps to take, in their order, separated by ;",
        None,
        text_value,
        None,
        "NAMES",
    ),
    Flag(
        ("-s", "--seed"),
        "seed",
        "seed of the draws (-1: any)",
        None,
        integer_value(-1, 2**64 - 1),
        -1,
    ),
    Flag(("--ignore-eos",), "ignore_eos", "never draw a token that ends the answer"),
)
_LOG = (
    Flag(("-v", "--verbose", "--log-verbose"), "verbose", "log everything"),
    Flag(
        ("-lv", "--verbosity", "--log-verbosity"),
        "verbosity",
        "log up to: 1 errors, 2 warnings, 3 notes, 4 and more everything",
        "LOG_VERBOSITY",
        integer_value(0, 100),
        3,
    ),
    Flag(("--log-file",), "log_file", "log to a file as well", "LOG_FILE", path_value, None, "FILE"),
)

GROUPS: Mapping[str, tuple[Flag, ...]] = {
    "model": _MODEL,
    "context": _CONTEXT,
    "prefix cache": _CACHE,
    "HTTP": _HTTP,
    "chat": _CHAT,
    "sampling, where a request says nothing": _SAMPLING,
    "log": _LOG,
}
FLAGS: tuple[Flag, ...] = tuple(flag for group in GROUPS.values() for flag in group)
