"""A llama-server as a process of its own: started, found, watched and ended."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from types import TracebackType

_URL = re.compile(r"https?://[0-9A-Za-z.:\[\]-]+:\d+")


class Server:
    """llama-server on a free port of this machine; a context manager. `url`: where it listens."""

    def __init__(self, model: Path, *flags: str, start_seconds: float = 120) -> None:
        """RuntimeError with what it printed where it does not say within the time that it listens."""
        command = [sys.executable, "-m", "llama_k3.cli.server", "-m", str(model), "--port", "0", *flags]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._lines: deque[str] = deque(maxlen=200)
        self._listening = threading.Event()
        self.url = ""
        threading.Thread(target=self._read, daemon=True).start()
        if not self._listening.wait(start_seconds) or not self.url:
            self.close()
            raise RuntimeError("llama-server does not listen; it printed:\n" + "".join(self._lines))

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            found = _URL.search(line)
            if found and not self.url:
                self.url = found.group()
                self._listening.set()
        self._listening.set()  # it has ended

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """The last lines that it printed."""
        return "".join(self._lines)

    def resident_bytes(self) -> int:
        """Memory of the process that is not the mapped model: RssAnon."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) * 1024

    def close(self) -> None:
        """End it as Ctrl-C does; after a minute by force."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
