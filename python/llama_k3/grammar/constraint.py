"""A compiled grammar at one point of its text: which tokens may come next."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ..errors import ArgumentError
from .errors import GrammarError

MASKED = np.float32(-1e30)
# Below this share of allowed tokens it is faster to put them back than to strike out the others.
_FEW = 1 / 8


class GrammarConstraint:
    """The `Constraint` of a grammar. Not for several threads at once."""

    def __init__(self, matcher: LLMatcher, n_vocab: int, end_ids: frozenset[int]) -> None:
        """`matcher`: owned by this object. `end_ids`: may come exactly where the text is complete."""
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._end_ids = end_ids
        self._end_index = np.array(sorted(end_ids), dtype=np.intp)
        self._words = np.zeros((n_vocab + 31) // 32, dtype=np.uint32)
        self._ended = False

    def mask(self, logits: npt.NDArray[np.float32]) -> None:
        """Set the logits [>= n_vocab] of tokens that may not come next to -1e30, in place.

        GrammarError: the text is over, or a limit of the grammar's cost was reached.
        """
        allowed = self._allowed()
        logits[self._n_vocab :] = MASKED
        known = logits[: self._n_vocab]
        ids = np.flatnonzero(allowed)
        if not ids.size:
            raise GrammarError("grammar: found no token that may come next, wanted one")
        if ids.size < self._n_vocab * _FEW:
            kept = known[ids]
            known.fill(MASKED)
            known[ids] = kept
        else:
            np.copyto(known, MASKED, where=~allowed)

    def allows(self, token: int) -> bool:
        """Whether the token may come next."""
        if self._ended or not 0 <= token < self._n_vocab:
            return False
        if token in self._end_ids:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1

    def accept(self, token: int) -> None:
        """Go on behind `token`. ArgumentError: it may not come next; nothing has changed then."""
        if token in self._end_ids:
            if not self.allows(token):
                raise ArgumentError(
                    f"token: found {token}, which ends the text, wanted the rest of the grammar"
                )
            self._ended = True
        elif self._ended or not 0 <= token < self._n_vocab or self._matcher.try_consume_tokens([token]) != 1:
            self._check()
            raise ArgumentError(f"token: found {token}, wanted one that the grammar allows next")

    def clone(self) -> GrammarConstraint:
        """An independent constraint at the same point."""
        other = GrammarConstraint(self._matcher.deep_copy(), self._n_vocab, self._end_ids)
        other._ended = self._ended
        return other

    def _allowed(self) -> npt.NDArray[np.bool_]:
        if self._ended:
            raise GrammarError("grammar: found the text at its end, wanted no further token")
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        bits = np.unpackbits(self._words.view(np.uint8), count=self._n_vocab, bitorder="little")
        allowed = bits.view(np.bool_)
        allowed[self._end_index] = self._matcher.is_accepting()
        return allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().split("\n")[0]
            raise GrammarError(
                f"grammar: found it too complex at this point of the text ({reason}), wanted a simpler one"
            )
