"""SamplerChain: how one request draws its tokens; and the log probabilities of a row of logits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arguments import integer
from ...errors import ArgumentError, NonFiniteError
from ...sampling import Sampler
from .request import Constraint, Sampling, TokenProbs

Row = npt.NDArray[np.float32]

# Finite, as the library's sampler refuses infinities; a token at or below it is never drawn.
NEVER = np.float32(-1e30)
# Biases and penalties stay within it, so that they alone never ban a token nor overflow.
_LARGEST = 1e29


def _number(name: str, value: Any, low: float, high: float) -> float:
    """The value as a float in low .. high; ArgumentError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ArgumentError(f"{name}: found {value!r}, wanted a number")
    if not low <= value <= high:
        raise ArgumentError(f"{name}: found {value}, wanted {low:g} .. {high:g}")
    return float(value)


class PenaltyWindow:
    """How often each token occurs among the last `size` accepted ones; size -1: among all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[int] = deque()
        self._place: dict[int, int] = {}  # of each token in the arrays
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    def accept(self, token: int) -> None:
        self._add(token)
        if self._size >= 0:
            self._recent.append(token)
            if len(self._recent) > self._size:
                self._drop(self._recent.popleft())

    def occurring(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The tokens in the window, each once, and their counts."""
        n = len(self._place)
        return self._ids[:n], self._counts[:n]

    def _add(self, token: int) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self._place)
            if place == self._ids.size:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._counts[place] = 0
        self._counts[place] += 1

    def _drop(self, token: int) -> None:
        place = self._place[token]
        self._counts[place] -= 1
        if not self._counts[place]:
            last = len(self._place) - 1
            moved = int(self._ids[last])
            self._ids[place], self._counts[place] = moved, self._counts[last]
            self._place[moved] = place
            del self._place[token]


class Penalties:
    """llama.cpp's repeat, presence and frequency penalties over the last tokens of prompt and answer."""

    def __init__(self, sampling: Sampling) -> None:
        self._repeat = _number("repeat_penalty", sampling.repeat_penalty, 1e-6, 1e6)
        self._presence = _number("presence_penalty", sampling.presence_penalty, -1e6, 1e6)
        self._frequency = _number("frequency_penalty", sampling.frequency_penalty, -1e6, 1e6)
        size = integer("repeat_last_n", sampling.repeat_last_n, -1, 2**31 - 1)
        self.active = size != 0 and (self._repeat != 1 or self._presence != 0 or self._frequency != 0)
        self._window = PenaltyWindow(size)
        self._size = size

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        for token in tokens if self._size < 0 else tokens[-self._size :]:
            self._window.accept(token)

    def accept(self, token: int) -> None:
        self._window.accept(token)

    def apply(self, row: Row) -> None:
        """Negative logits are multiplied by the repeat penalty, which would make them likelier if divided."""
        ids, counts = self._window.occurring()
        logits = row[ids]
        logits = np.where(logits <= 0, logits * self._repeat, logits / self._repeat)
        logits -= counts * self._frequency + self._presence
        row[ids] = np.clip(logits, -_LARGEST, _LARGEST)


class SamplerChain:
    """Draws the tokens of one request in the order of `Sampling`; belongs to one thread at a time."""

    def __init__(
        self,
        n_vocab: int,
        sampling: Sampling,
        banned: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        """ArgumentError names what is out of its range."""
        self._temperature = _number("temperature", sampling.temperature, 0.0, 1e6)
        top_p, min_p = _number("top_p", sampling.top_p, 0, 1e6), _number("min_p", sampling.min_p, 0, 1)
        self._top_k = min(max(0, integer("top_k", sampling.top_k, -(2**63), 2**63 - 1)), n_vocab)
        self._sampler = Sampler(self._temperature, self._top_k, top_p, min_p, sampling.seed)
        self.seed = self._sampler.seed
        self._bias_ids, self._biases = _finite_biases(sampling, n_vocab)
        self._bans = _bans(sampling, banned, n_vocab)
        self._constraint = constraint
        self._penalties = Penalties(sampling)

    @property
    def changes_row(self) -> bool:
        """`sample` changes the row it is given."""
        return bool(
            self._bias_ids.size or self._bans.size or self._penalties.active or self._constraint is not None
        )

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """The prompt counts for the penalties, not for the constraint."""
        if self._penalties.active:
            self._penalties.accept_prompt(tokens)

    def accept(self, token: int) -> None:
        """Go on behind a token of the answer, drawn or forced. ArgumentError: the constraint refuses it."""
        if self._penalties.active:
            self._penalties.accept(token)
        if self._constraint is not None:
            self._constraint.accept(token)

    def sample(self, row: Row) -> int:
        """The next token; logits [n_vocab] are changed, see `changes_row`. NonFiniteError, ArgumentError."""
        if self._bias_ids.size:
            row[self._bias_ids] += self._biases
        if self._penalties.active:
            self._penalties.apply(row)
        if self._bans.size:
            row[self._bans] = NEVER
        if self._constraint is not None:
            self._constraint.mask(row)
            np.maximum(row, NEVER, out=row)
        return self._largest(row) if self._temperature == 0 else self._draw(row)

    def _largest(self, row: Row) -> int:
        token = int(row.argmax())
        value = float(row[token])
        if not math.isfinite(value):
            raise NonFiniteError(f"logits: value {value} of token {token} found, finite ones wanted")
        if value <= NEVER:
            raise ArgumentError("logits: found every token banned, wanted one that may be drawn")
        return token

    def _draw(self, row: Row) -> int:
        likeliest = _likeliest(row, self._top_k)
        token = self._sampler.sample(row) if likeliest is None else self._sample_of(likeliest, row)
        if row[token] > NEVER:
            return token
        # At extreme temperatures, or by rounding, a banned token keeps a chance: they are taken out.
        allowed = np.flatnonzero(row > NEVER)
        if not allowed.size:
            raise ArgumentError("logits: found every token banned, wanted one that may be drawn")
        return self._sample_of(allowed, row)

    def _sample_of(self, ids: npt.NDArray[np.int64], row: Row) -> int:
        """Draw one of some tokens, in ascending order."""
        return int(ids[self._sampler.sample(row[ids])])


def _likeliest(row: Row, n: int) -> npt.NDArray[np.int64] | None:
    """A short ascending list with the n largest logits and all that equal the last of them; None where
    the row is not much longer. It saves the sampler from ranking the whole vocabulary."""
    block = 128
    n_blocks = row.size // block
    if not 0 < n <= n_blocks // 4:
        return None
    # Each of the n blocks with the largest maxima holds a logit of at least the n-th such maximum.
    maxima = row[: n_blocks * block].reshape(n_blocks, block).max(axis=1)
    return np.flatnonzero(row >= np.partition(maxima, n_blocks - n)[n_blocks - n])


def _bans(sampling: Sampling, banned: Collection[int], n_vocab: int) -> npt.NDArray[np.int64]:
    """Ids that are never drawn."""
    biased = [token for token, bias in sampling.logit_bias.items() if bias == -math.inf]
    checked = {integer("id of logit_bias", token, 0, n_vocab - 1) for token in biased}
    checked |= {integer("banned", token, 0, n_vocab - 1) for token in banned}
    return np.array(sorted(checked), np.int64)


def _finite_biases(sampling: Sampling, n_vocab: int) -> tuple[npt.NDArray[np.int64], Row]:
    """Ids and values of the biases that do not ban."""
    values = {
        integer("id of logit_bias", token, 0, n_vocab - 1): bias
        for token, bias in sampling.logit_bias.items()
        if bias != -math.inf
    }
    biases = [_number(f"logit_bias of {token}", bias, -_LARGEST, _LARGEST) for token, bias in values.items()]
    return np.array(list(values), np.int64), np.array(biases, np.float32)


def token_probs(row: Row, token: int, n: int) -> TokenProbs:
    """Log probabilities of the token and of the n likeliest ones; `row`: the model's own logits [n_vocab]."""
    logits = row.astype(np.float64)
    largest = logits.max()
    scale = largest + math.log(np.exp(logits - largest).sum())
    n = min(n, row.size)
    top: list[int] = []
    if n > 0:
        least = np.partition(row, row.size - n)[row.size - n]
        candidates = np.flatnonzero(row >= least)  # ascending: ties to the lower id
        top = candidates[np.argsort(-row[candidates], kind="stable")][:n].tolist()
    return TokenProbs(token, float(logits[token] - scale), tuple((i, float(logits[i] - scale)) for i in top))
