"""llama-cli: chat with a model, or ask it once.

The answer goes to standard output, everything else (banner, progress, timings, errors) to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from .._lib import set_log_callback
from ..context import Context
from ..errors import ArgumentError, ContextFullError, LlamaK3Error, StateError
from ..model import Model, available_cpus
from ..sampling import Sampler
from ..server.refused import REFUSED
from ..xtml import EFFORTS, Delta
from .commands import Commands, is_command
from .perf import perf_lines
from .session import ChatSession, Generator, SessionOptions, TextSession, open_session
from .terminal import PROMPT, Terminal

_DESCRIPTION = (
    "Chat with a Kimi-K3 or Kimi-Linear model. -p or -f gives the first message; without -st the chat "
    "then goes on. In the chat, each line is a message, and one that ends in a backslash goes on with the "
    "next; /help lists commands; Ctrl-C stops an answer; Ctrl-C twice, Ctrl-D or /exit leaves. A model "
    "without chat markers in its vocabulary continues the text instead."
)
_LOG_LEVELS = ("debug", "info", "warning", "error")
_WARNING = _LOG_LEVELS.index("warning")
_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n{self.format_usage()}")


class _Refuse(argparse.Action):
    """A flag of llama.cpp that has no meaning here; the metavar says why."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        parser.error(f"{option_string}: {self.metavar}")


def build_parser() -> argparse.ArgumentParser:
    """The flags, under llama.cpp's names."""
    parser = _Parser("llama-cli", description=_DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("-m", "--model", required=True, metavar="FILE", help="GGUF file (any part of a split model)")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("-p", "--prompt", metavar="TEXT", help="first message")
    text.add_argument("-f", "--file", metavar="FILE", type=Path, help="file with the first message")
    add("-sys", "--system-prompt", metavar="TEXT", help="system message")
    add(
        "--tools",
        metavar="FILE",
        type=Path,
        help="tools that the model may call: a JSON array in OpenAI's form",
    )
    add("--reasoning-effort", choices=EFFORTS, help="how much the model thinks (max)")
    add(
        "-n", "--n-predict", type=int, default=-1, metavar="N", help="most tokens of an answer (-1: no limit)"
    )
    add(
        "-c",
        "--ctx-size",
        type=int,
        default=4096,
        metavar="N",
        help="tokens of context (0: the model's; 4096)",
    )
    add("-t", "--threads", type=int, default=available_cpus(), metavar="N", help="threads (%(default)s)")
    add("--no-mmap", action="store_true", help="read the model into memory: starts slower, decodes faster")
    add("--temp", type=float, default=0.8, metavar="T", help="temperature (0.8; 0: the likeliest token)")
    add("--top-k", type=int, default=40, metavar="N", help="keep the N likeliest tokens (40; 0: all)")
    add(
        "--top-p",
        type=float,
        default=0.95,
        metavar="P",
        help="keep the likeliest tokens up to P (0.95; 1: all)",
    )
    add(
        "--min-p",
        type=float,
        default=0.05,
        metavar="P",
        help="drop tokens below P times the likeliest (0.05)",
    )
    add("-s", "--seed", type=int, default=-1, metavar="N", help="seed of the draws (-1: another every time)")
    add("--ignore-eos", action="store_true", help="never draw a token that ends the answer")
    add("-st", "--single-turn", action="store_true", help="leave after the answer to -p or -f")
    add("-v", "--verbose", action="store_true", help="show the library's messages")
    add("--version", action="version", version=f"llama-cli (llama-k3) {__version__}")
    known = set(parser._option_string_actions)
    for names, reason in REFUSED.items():
        if not known & set(names):
            add(*names, nargs="*", action=_Refuse, metavar=reason, dest="refused", help=argparse.SUPPRESS)
    return parser


def _first_message(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str | None:
    text: str | None = args.prompt
    if args.file is not None:
        try:
            text = args.file.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"-f {args.file}: {error}")
    if args.single_turn and not (text and text.strip()):
        parser.error("-st needs a message: -p TEXT or -f FILE")
    return text


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for flag, value, low in (("-n", args.n_predict, -1), ("-c", args.ctx_size, 0), ("-t", args.threads, 1)):
        if value < low:
            parser.error(f"{flag}: found {value}, wanted at least {low}")
    if not -1 <= args.seed < 2**64:
        parser.error(f"-s: found {args.seed}, wanted -1 .. 2^64 - 1")


def _tools(parser: argparse.ArgumentParser, path: Path | None) -> list[dict[str, Any]] | None:
    """The tools of a file; whether they can be declared shows when the first message is rendered."""
    if path is None:
        return None
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        parser.error(f"--tools {path}: {error}")
    if not isinstance(tools, list):
        parser.error(f"--tools {path}: found {type(tools).__name__}, wanted a JSON array of tools")
    return tools


def _log(level: int, text: str) -> None:
    print(
        f"[{_LOG_LEVELS[level] if 0 <= level < len(_LOG_LEVELS) else level}] {text.rstrip()}", file=sys.stderr
    )


def _log_warnings(level: int, text: str) -> None:
    # An error reaches the user as an exception's message.
    if level == _WARNING:
        _log(level, text)


class _Conversation:
    """Reads messages and commands, shows answers."""

    def __init__(self, session: ChatSession | TextSession, terminal: Terminal, context: Context) -> None:
        self._session = session
        self._terminal = terminal
        self._commands = (
            Commands(session, context, terminal.note) if isinstance(session, ChatSession) else None
        )

    def answer_once(self, message: str) -> int:
        """The answer to a message; the exit status."""
        try:
            return _INTERRUPTED if self._terminal.show_answer(self._session.ask(message)) else 0
        except ContextFullError as error:
            self._note_full(error)
            return 1

    def go_on(self, first: str | None) -> None:
        """Answer `first`, then message after message until the user leaves."""
        message = first
        if message is not None:
            self._terminal.show_message(message)
        while True:
            if message is None:
                message = self._terminal.read_message(self._prompt())
                if message is None or message.strip() == "/exit":
                    return
            self._take(message)
            message = None

    def _prompt(self) -> str:
        call = self._session.open_call if isinstance(self._session, ChatSession) else None
        return PROMPT if call is None else f"result of {call['function']['name']}{PROMPT}"

    def _take(self, message: str) -> None:
        try:
            answer = self._answer_to(message)
            if answer is not None:
                self._terminal.show_answer(answer)
        except ContextFullError as error:
            self._note_full(error)
        except (ArgumentError, StateError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            self._terminal.note(f"error: {error}")

    def _answer_to(self, message: str) -> Iterator[Delta] | None:
        if not message.strip():
            return None
        if self._commands is not None and is_command(message):
            return self._commands.run(message)
        return self._session.ask(message)

    def _note_full(self, error: ContextFullError) -> None:
        self._terminal.note(f"context full: {error} (a larger -c makes room)")


def _run(args: argparse.Namespace, first: str | None, options: SessionOptions) -> int:
    start = time.perf_counter()
    terminal = Terminal(sys.stdin, sys.stdout, sys.stderr)
    set_log_callback(_log if args.verbose else _log_warnings)
    with Model(args.model, args.threads, terminal.load_progress, mmap=not args.no_mmap) as model:
        n_ctx = args.ctx_size or model.info.n_ctx_train
        seed = None if args.seed < 0 else args.seed
        with (
            model.context(n_ctx=n_ctx, progress=terminal.prompt_progress) as context,
            Sampler(args.temp, args.top_k, args.top_p, args.min_p, seed) as sampler,
        ):
            generator = Generator(context, model.tokenizer, sampler, options)
            template = model.metadata.get("tokenizer.chat_template")
            session = open_session(generator, template if isinstance(template, str) else None, options)
            conversation = _Conversation(session, terminal, context)
            loaded = time.perf_counter()
            if not args.single_turn:
                terminal.banner(model, context, chat=isinstance(session, ChatSession))
            try:
                if args.single_turn:
                    return conversation.answer_once(first or "")
                conversation.go_on(first)
                return 0
            finally:
                _show_timings(context, start, loaded, args.verbose)


def _show_timings(context: Context, start: float, loaded: float, verbose: bool) -> None:
    now = time.perf_counter()
    lines = perf_lines(context.counters(), 1e3 * (loaded - start), 1e3 * (now - start), verbose)
    print("", *lines, sep="\n", file=sys.stderr)


def _open_closed_streams() -> None:
    """Python has None for a standard stream that the caller closed; the null device stands in for it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open as long as the process


def _drop_output() -> None:
    """Nothing more can be written, also not by the interpreter at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command. Exit status: 0, 1 for an error, 2 for wrong flags, 130 for Ctrl-C."""
    _open_closed_streams()
    parser = build_parser()
    args = parser.parse_args(argv)
    _check(parser, args)
    first = _first_message(parser, args)
    options = SessionOptions(
        args.n_predict,
        args.ignore_eos,
        args.system_prompt,
        _tools(parser, args.tools),
        args.reasoning_effort,
    )
    try:
        return _run(args, first, options)
    except LlamaK3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left.
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        print(f"error: output not written: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
