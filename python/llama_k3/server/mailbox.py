"""From the engine's thread to the event loop: events of many answers with one wake-up of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Mailbox:
    """Wakes the loop once for all that was posted since it last looked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._due: list[Callable[[], None]] = []

    def post(self, deliver: Callable[[], None]) -> None:
        """Have `deliver` called on the loop. From any thread; a loop that is closed drops it."""
        with self._lock:
            self._due.append(deliver)
            if len(self._due) > 1:
                return
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            self._due = []

    def _deliver(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for deliver in due:
            deliver()


class Channel(Generic[_T]):
    """Items put by another thread, taken on the loop in batches."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._items: list[_T] = []
        self._posted = False
        self._ready = asyncio.Event()
        self._lazy = False

    def put(self, item: _T, last: bool = False) -> None:
        """From any thread. `last`: wakes also a taker that waits for everything."""
        with self._lock:
            self._items.append(item)
            if self._posted or (self._lazy and not last):
                return
            self._posted = True
        self._mailbox.post(self._ready.set)

    async def take(self) -> list[_T]:
        """All items since the last call, at least one."""
        await self._ready.wait()
        with self._lock:
            items, self._items = self._items, []
            self._posted = False
            self._ready.clear()
        return items

    def wait_for_last(self) -> None:
        """From now on only the last item wakes the taker."""
        with self._lock:
            self._lazy = True
