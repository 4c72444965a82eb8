"""Commands of a chat in the terminal: lines that begin with a slash and a word."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..context import Context
from ..errors import ArgumentError, StateError
from ..xtml import Delta
from .perf import perf_lines
from .session import ChatSession

HELP = {
    "/regen": "another answer in place of the last one",
    "/undo": "take back the last message and its answer",
    "/clear": "start anew",
    "/save FILE": "write the dialogue to FILE, and the model's state beside it",
    "/load FILE": "go on with a saved dialogue",
    "/stats": "tokens, speed and memory",
    "/help": "this list",
    "/exit": "leave",
}
_COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)
_VERSION = 1


class Commands:
    """Carries out commands on a chat."""

    def __init__(self, session: ChatSession, context: Context, note: Callable[[str], None]) -> None:
        """`note`: shows a line to the user."""
        self._session = session
        self._context = context
        self._note = note

    def run(self, line: str) -> Iterator[Delta] | None:
        """Carry out a command: an answer to show, or None. ArgumentError, StateError, OSError: it failed."""
        match = _COMMAND.fullmatch(line.strip())
        assert match, "only lines that is_command"
        name, argument = match.groups()
        if name == "/regen":
            return self._session.regenerate()
        if name == "/undo":
            self._note(f"taken back: {self._session.undo()}")
        elif name == "/clear":
            self._session.clear()
        elif name == "/save":
            self._save(_file_of(name, argument))
        elif name == "/load":
            self._load(_file_of(name, argument))
        elif name == "/stats":
            self._stats()
        elif name == "/help":
            self._note("\n".join(f"{usage:<12} {text}" for usage, text in HELP.items()))
        else:
            raise ArgumentError(f"{name}: found no such command, wanted one of {', '.join(HELP)}")
        return None

    def _save(self, path: Path) -> None:
        """The messages as JSON, and the sequence in a file beside it: by way of temporary names."""
        self._context.save(0, _state_of(path))
        temporary = path.with_name(path.name + ".tmp")
        data = {"version": _VERSION, "messages": self._session.messages}
        temporary.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
        os.replace(temporary, path)
        self._note(f"saved {len(self._session.messages)} messages, {self._context.position()} tokens: {path}")

    def _load(self, path: Path) -> None:
        """The messages; and the sequence if it fits the model, else it is computed at the next turn."""
        messages = _read_messages(path)
        try:
            self._context.load(0, _state_of(path))
        except StateError as error:
            self._note(f"the state is computed anew: {error}")
        self._session.messages = messages
        self._note(f"loaded {len(messages)} messages, {self._context.position()} tokens: {path}")

    def _stats(self) -> None:
        context, memory = self._context, self._context.memory()
        sizes = {
            "in all": memory.total,
            "weights": memory.weights,
            "latent rows in use": memory.latent_used,
            "states": memory.state + memory.window,
            "snapshots": memory.snapshots,
        }
        self._note(
            f"{context.position()} of {context.params.n_ctx} tokens of context, "
            f"{len(self._session.messages)} messages; MiB: "
            + ", ".join(f"{what} {size / 2**20:,.1f}" for what, size in sizes.items())
        )
        # the lines of the load time and of the total time are the program's
        self._note("\n".join(perf_lines(self._context.counters(), 0.0, 0.0, verbose=True)[1:3]))


def is_command(text: str) -> bool:
    """A slash and a word of small letters, alone or with an argument; so a path is a message."""
    return _COMMAND.fullmatch(text.strip()) is not None


def _file_of(command: str, argument: str | None) -> Path:
    if not argument:
        raise ArgumentError(f"{command}: found no file name, wanted {command} FILE")
    return Path(argument).expanduser()


def _state_of(path: Path) -> Path:
    return path.with_name(path.name + ".state")


def _read_messages(path: Path) -> list[dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        messages = data["messages"] if data["version"] == _VERSION else None
    except (ValueError, KeyError, TypeError, RecursionError):
        messages = None
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise ArgumentError(
            f"{path}: found no dialogue of version {_VERSION}, wanted a file that /save wrote"
        )
    return messages


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )
