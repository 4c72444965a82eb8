"""Parked sequences in memory, and the comparison of token prefixes that every tier searches with."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...context import Snapshot

TokenArray = npt.NDArray[np.int32]

_FIRST_BLOCK, _GROWTH = 64, 8


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """Number of leading tokens that are equal.

    Blocks of growing size are compared, so that an early difference is cheap.
    """
    end = min(a.size, b.size)
    start, block = 0, _FIRST_BLOCK
    while start < end:
        stop = min(start + block, end)
        different = a[start:stop] != b[start:stop]
        if different.any():
            return start + int(different.argmax())
        start, block = stop, block * _GROWTH
    return end


def starts_with(a: TokenArray, b: TokenArray) -> bool:
    """Whether `b` is a prefix of `a`, or equal to it."""
    return b.size <= a.size and common_prefix(a, b) == b.size


def newest_point(points: Sequence[int], limit: int) -> int:
    """The largest of the ascending points that is at most `limit`; 0 when there is none."""
    index = bisect_right(points, limit)
    return points[index - 1] if index else 0


@dataclass(eq=False)
class Stored:
    """A sequence that is held outside of the slots. `points`: ascending positions that it can be restored
    at, its end the last one. `size`: bytes. `used`: clock of the last use."""

    tokens: TokenArray
    points: tuple[int, ...]
    size: int
    used: int

    def replaces(self, other: Stored) -> bool:
        """Whether all that can be reused of the other can be reused of this one."""
        return set(other.points) <= set(self.points) and starts_with(self.tokens, other.tokens)

    def usable(self, prompt: TokenArray, more_than: int) -> int:
        """The newest point in the common prefix that leaves a token of the prompt to evaluate; 0 when it is
        not beyond `more_than`.

        The prefix is only compared where single tokens let it reach the next point.
        """
        index = bisect_right(self.points, more_than)
        if index == len(self.points) or self.points[index] >= prompt.size:
            return 0
        wanted = self.points[index]
        if self.tokens[wanted - 1] != prompt[wanted - 1] or self.tokens[more_than] != prompt[more_than]:
            return 0
        limit = min(common_prefix(self.tokens, prompt), prompt.size - 1)
        return newest_point(self.points, limit) if limit >= wanted else 0


@dataclass(eq=False)
class ParkedEntry(Stored):
    """One in memory."""

    snapshot: Snapshot

    @cached_property
    def key(self) -> str:
        """A name of what it holds."""
        digest = hashlib.blake2b(self.tokens.tobytes(), digest_size=16)
        digest.update(np.array(self.points, np.int64).tobytes())
        return digest.hexdigest()


class ParkedTier:
    """The entries in memory. Which of them to drop is decided elsewhere."""

    def __init__(self) -> None:
        self._entries: list[ParkedEntry] = []

    def __iter__(self) -> Iterator[ParkedEntry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return any(held is entry for held in self._entries)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self._entries)

    def add(self, entry: ParkedEntry) -> None:
        """Replaces the entries that it can stand in for."""
        self._entries = [held for held in self._entries if not entry.replaces(held)]
        self._entries.append(entry)

    def remove(self, entry: ParkedEntry) -> None:
        """The memory is free once nobody uses the snapshot any more."""
        self._entries = [held for held in self._entries if held is not entry]
