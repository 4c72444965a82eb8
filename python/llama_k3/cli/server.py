"""llama-server: the command. Flags are in server/flags.py."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import sys
import threading
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from .. import __version__
from .._lib import set_log_callback
from ..errors import LlamaK3Error
from ..model import Model, available_cpus
from ..server.app import create_app
from ..server.engine.engine import Engine
from ..server.engine.options import EngineOptions
from ..server.engine.request import Sampling
from ..server.errors import ApiError
from ..server.flags import parse
from ..server.http import server_config
from ..server.options import ServerOptions
from ..server.schemas.chat import EFFORTS
from ..server.schemas.common import without_steps
from ..server.service import Service
from ..server.state import ServerState

logger = logging.getLogger("llama_k3.server")

_BACKLOG = 1024
_SWITCH_S = 0.0005
"""How long one Python thread may keep the others waiting; the engine's and the event loop's take turns."""

_LIBRARY_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_LOG_LEVELS = {0: logging.CRITICAL, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}


class StartError(Exception):
    """The server cannot start; the text says why."""


class _Server(uvicorn.Server):
    """Ends on the first signal once the running answers were told to end; the second one kills."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        service = self._state.loaded_service
        if service is not None:
            # Its end waits for a micro-batch, which the event loop must not.
            threading.Thread(target=service.engine.close, name="shutdown", daemon=True).start()


def _server_options(args: Namespace) -> ServerOptions:
    """ApiError: --samplers. StartError: files of keys."""
    sampling = Sampling(
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=None if args.seed < 0 else args.seed,
        repeat_penalty=args.repeat_penalty,
        repeat_last_n=args.repeat_last_n,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
    )
    if args.samplers is not None:
        sampling = without_steps(sampling, args.samplers)
    effort = None if args.reasoning_effort == "default" else args.reasoning_effort
    return ServerOptions(
        model_path=args.model,
        api_keys=tuple(args.api_key or ()) + _file_keys(args.api_key_file),
        api_prefix=args.api_prefix,
        slot_save_path=_folder("--slot-save-path", args.slot_save_path),
        request_timeout=float(args.timeout),
        metrics=bool(args.metrics),
        props=bool(args.props),
        slots=args.slots,
        webui=args.webui,
        loopback=_is_loopback(args.host),
        cors_origins=tuple(origin.strip().rstrip("/") for origin in args.cors_origins.split(",") if origin),
        ping_interval=float(args.sse_ping_interval) if args.sse_ping_interval > 0 else None,
        sampling=sampling,
        n_predict=args.n_predict,
        ignore_eos=bool(args.ignore_eos),
        cache_prompt=args.cache_prompt,
        reasoning_format=args.reasoning_format,
        reasoning_budget=args.reasoning_budget,
        reasoning_effort=None if effort is None else EFFORTS[effort],
        thinking=args.reasoning != "off" and effort != "none",
    )


def _folder(flag: str, path: Path | None) -> Path | None:
    if path is not None and not path.is_dir():
        raise StartError(f"{flag}: found no folder {path}, wanted one")
    return path


def _file_keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--api-key-file {path}: {error}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise StartError(f"--api-key-file {path}: found no key, wanted at least one")
    return keys


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _engine_options(args: Namespace, n_ctx_train: int) -> EngineOptions:
    kinds = {kind for kind in (args.cache_type_k, args.cache_type_v) if kind is not None}
    if len(kinds) > 1:
        raise StartError(
            f"--cache-type-v: found {args.cache_type_v}, wanted {args.cache_type_k} as --cache-type-k: "
            "keys and values are one row"
        )
    return EngineOptions(
        n_ctx=args.ctx_size or n_ctx_train,
        n_parallel=4 if args.parallel < 1 else args.parallel,
        n_ubatch=min(args.ubatch_size, args.batch_size),
        kv_type=kinds.pop() if kinds else "bf16",
        cache_ram=args.cache_ram,
        cache_disk=args.cache_disk,
        cache_disk_size=args.cache_disk_size if args.cache_disk else 0,
        snapshot_min_step=args.checkpoint_min_step,
        snapshot_every=args.snapshot_every,
    )


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens; StartError names the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise StartError(f"{host}:{port}: cannot listen there: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def _url(args: Namespace, listener: socket.socket) -> str:
    scheme = "https" if args.ssl_cert_file else "http"
    host = f"[{args.host}]" if ":" in args.host else args.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}{args.api_prefix}"


def _check_tls(args: Namespace) -> None:
    """StartError: one file without the other, or files that do not go together."""
    if (args.ssl_key_file is None) != (args.ssl_cert_file is None):
        raise StartError("--ssl-key-file, --ssl-cert-file: found one of them, wanted both or none")
    if args.ssl_key_file is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                args.ssl_cert_file, args.ssl_key_file
            )
        except (OSError, ssl.SSLError) as error:
            raise StartError(f"--ssl-cert-file {args.ssl_cert_file}: {error}") from None


def _start_log(args: Namespace) -> None:
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if args.log_file is not None:
        try:
            handlers.append(logging.FileHandler(args.log_file, encoding="utf-8"))
        except OSError as error:
            raise StartError(f"--log-file {args.log_file}: {error.strerror}") from None
    level = logging.DEBUG if args.verbose else _LOG_LEVELS.get(args.verbosity, logging.DEBUG)
    logging.basicConfig(
        level=level, handlers=handlers, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    library = logging.getLogger("llama_k3")

    def log(number: int, text: str) -> None:
        library.log(_LIBRARY_LEVELS[number] if 0 <= number < 4 else logging.INFO, "%s", text.rstrip())

    set_log_callback(log)


def _end_log() -> None:
    set_log_callback(None)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()


def _load(args: Namespace, options: ServerOptions) -> tuple[Model, Service]:
    """LlamaK3Error, StartError."""
    threads = args.threads if args.threads > 0 else available_cpus()
    model = Model(args.model, threads, mmap=args.mmap and args.load_mode != "none")
    try:
        name = args.alias or args.model.name.removesuffix(".gguf")
        engine = Engine(model, _engine_options(args, model.info.n_ctx_train))
        try:
            workers = args.threads_http if args.threads_http > 0 else 2
            return model, Service(engine, model, name, options.request_timeout, workers)
        except BaseException:
            engine.close()
            raise
    except BaseException:
        model.close()
        raise


class _Start:
    """Loads the model beside the server that already answers 503."""

    def __init__(self, args: Namespace, state: ServerState, server: _Server, url: str) -> None:
        self._args = args
        self._state = state
        self._server = server
        self._url = url
        self.model: Model | None = None
        self.failure: Exception | None = None

    def run(self) -> None:
        """On a thread of its own."""
        try:
            self.model, self._state.loaded_service = _load(self._args, self._state.options)
        except Exception as error:
            self.failure = error
            self._server.should_exit = True
            return
        if self._server.should_exit:
            self._state.loaded_service.engine.close()
            return
        print(f"llama-server is listening on {self._url}", file=sys.stderr, flush=True)


def _run(args: Namespace) -> int:
    _start_log(args)
    _check_tls(args)
    options = _server_options(args)
    listener = _bind(args.host, args.port)
    with listener:
        state = ServerState(options)
        config = server_config(create_app(state), args.ssl_key_file, args.ssl_cert_file)
        server = _Server(config, state)
        start = _Start(args, state, server, _url(args, listener))
        port = listener.getsockname()[1]
        logger.info("loading %s; port %d answers 503 meanwhile", args.model, port)
        loader = threading.Thread(target=start.run, name="load", daemon=True)
        loader.start()
        asyncio.run(server.serve([listener]))
    if start.failure is not None:
        raise start.failure
    service = state.loaded_service
    if service is not None:
        service.engine.close()
        service.close()
    logger.info("ended")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command. Exit status: 0, 1 where it cannot start, 2 for wrong flags."""
    args = parse(sys.argv[1:] if argv is None else argv, os.environ, f"llama-server (llama-k3) {__version__}")
    sys.setswitchinterval(_SWITCH_S)
    try:
        return _run(args)
    except (StartError, LlamaK3Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ApiError as error:
        print(f"error: --{error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        _end_log()


if __name__ == "__main__":
    sys.exit(main())
