"""MicroBatch: which tokens of which slots are computed next, and the buffers they are handed over in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...context import BATCH_ITEM, Context


def fair_shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` tokens: equal shares, and what one cannot use goes to the others."""
    shares = [0] * len(wanted)
    left = len(wanted)
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        shares[i] = min(wanted[i], room // left)
        room -= shares[i]
        left -= 1
    return shares


class MicroBatch:
    """At most n_ubatch tokens and the logits that come back; its memory is used again for each one."""

    def __init__(self, n_ubatch: int, n_seq: int, n_vocab: int) -> None:
        self._items: npt.NDArray[Any] = np.zeros(n_ubatch, BATCH_ITEM)
        self._tokens, self._seqs, self._wants = (self._items[name] for name in ("token", "seq", "want"))
        self._logits = np.empty((min(n_ubatch, n_seq), n_vocab), np.float32)
        self.n_tokens = 0
        self.n_rows = 0

    def clear(self) -> None:
        self.n_tokens = self.n_rows = 0

    def add(self, seq: int, tokens: Sequence[int], want: bool) -> None:
        """Append tokens to a sequence; `want`: a row of logits after the last one."""
        start, end = self.n_tokens, self.n_tokens + len(tokens)
        if end == start + 1:
            self._items[start] = (tokens[0], seq, want)
        else:
            self._tokens[start:end] = tokens
            self._seqs[start:end] = seq
            self._wants[start:end] = False
            self._wants[end - 1] = want
        self.n_tokens = end
        self.n_rows += want

    def decode(self, context: Context) -> None:
        """Compute it. Errors of Context.decode_items."""
        context.decode_items(self._items[: self.n_tokens], self._logits)

    def row(self, index: int) -> npt.NDArray[np.float32]:
        """The logits [n_vocab] of the index-th `add` that wanted some; overwritten by the next decode."""
        row: npt.NDArray[np.float32] = self._logits[index]
        return row
