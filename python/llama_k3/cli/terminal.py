"""What the user sees and types: streamed answers with dimmed reasoning, messages, progress."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
from collections.abc import Iterator
from typing import TextIO

from ..context import Context
from ..model import Model
from ..xtml import Delta

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_ERASE_LINE = "\r\x1b[K"
PROMPT = "> "
# Prompts shorter than this are read without a word.
_SHOWN_PROMPT = 1024
# Lines of history that are kept.
_HISTORY = 1000


class Terminal:
    """Standard input, output and error of the command. Colours and progress only where a person looks."""

    def __init__(self, stdin: TextIO, stdout: TextIO, stderr: TextIO) -> None:
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        # Bytes that are no text, typed, piped or given as a flag, are not worth a failure.
        for stream in (stdin, stdout, stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        self._typing = stdin.isatty() and stdout.isatty()
        self._colour = stdout.isatty() and not os.environ.get("NO_COLOR")
        self._progress = stderr.isatty()
        if self._typing:
            _use_history()

    def banner(self, model: Model, context: Context, chat: bool) -> None:
        info, memory = model.info, context.memory()
        self.note(
            f"{info.architecture}, {info.n_layer} layers, {info.n_params / 1e6:,.1f} M parameters, "
            f"{info.n_bytes / 2**20:,.1f} MiB; context of {context.params.n_ctx} tokens, "
            f"{(memory.total - memory.weights) / 2**20:,.1f} MiB; {model.n_threads} threads"
        )
        mode = "Chat" if chat else "No chat markers in the vocabulary: a message is a text to continue"
        self.note(
            f"{mode}. Ctrl-C stops an answer, /exit or Ctrl-D leaves{', /help lists more' if chat else ''}."
        )

    def note(self, text: str) -> None:
        print(text, file=self._stderr, flush=True)

    def load_progress(self, fraction: float) -> None:
        self._show_progress(f"loading {fraction:4.0%}", fraction >= 1)

    def prompt_progress(self, done: int, wanted: int) -> None:
        if wanted >= _SHOWN_PROMPT:
            self._show_progress(f"reading prompt {done}/{wanted}", done >= wanted)

    def _show_progress(self, text: str, finished: bool) -> None:
        if self._progress:
            self._stderr.write(_ERASE_LINE + ("" if finished else text))
            self._stderr.flush()

    def show_message(self, text: str) -> None:
        """A message that was not typed."""
        self._write(f"{PROMPT}{text}\n")

    def read_message(self, prompt: str = PROMPT) -> str | None:
        """The next message; None at the end of the input, or at two Ctrl-C in a row.

        A line that ends in a backslash goes on with the next one.
        """
        lines: list[str] = []
        interrupted = False
        while True:
            try:
                line = self._read_line("" if lines else prompt)
            except KeyboardInterrupt:
                self._write("\n")
                if interrupted:
                    return None
                interrupted, lines = True, []
                self.note("(Ctrl-C again, Ctrl-D or /exit leaves)")
                continue
            if line is None:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _read_line(self, prompt: str) -> str | None:
        """A line without its end; None at the end of the input."""
        if not self._typing:
            line = self._stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            self._write("\n")
            return None

    def show_answer(self, deltas: Iterator[Delta]) -> bool:
        """Write the answer as it comes. True when Ctrl-C stopped it."""
        shown: str | None = None
        try:
            for delta in deltas:
                if delta.kind != shown:
                    self._write(self._switch(shown, delta.kind))
                    shown = delta.kind
                self._write(delta.text)
            return False
        except KeyboardInterrupt:
            return True
        finally:
            close = getattr(deltas, "close", None)
            if close is not None:
                close()
            self._write(self._switch(shown, None) + "\n")

    def _switch(self, old: str | None, new: str | None) -> str:
        """What stands between two kinds of output."""
        text = ""
        if old == "reasoning":
            text += f"\n[End thinking]{_PLAIN if self._colour else ''}\n\n"
        elif old in ("arguments", "call") and new != "arguments":
            text += "]\n"
        if new == "reasoning":
            text += f"{_DIM if self._colour else ''}[Start thinking]\n"
        elif new == "call":
            text += "[tool call "
        elif new == "arguments":
            text += " "
        return text

    def _write(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()


def _use_history() -> None:
    """Line editing, with the history of earlier chats: a file that only the user may read."""
    try:
        import readline
    except ImportError:
        return
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = os.path.join(state, "llama-k3", "history")
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY)
    atexit.register(_keep_history, path)


def _keep_history(path: str) -> None:
    import readline

    with contextlib.suppress(OSError):  # a history that cannot be kept is no reason to complain
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        readline.write_history_file(path)
