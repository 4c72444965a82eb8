"""Base of the parsers of both chat formats: segments go in, deltas come out, until the answer ends."""

from __future__ import annotations

from collections.abc import Sequence

from .segments import MarkerSplitter, Segment
from .types import AnswerParts, Delta, Message


class SegmentReader:
    """A format says what its control tokens and its text mean in `_control` and `_text`, sets `_ended` at the
    end of the answer, and adds to `flush` what its own open parts need."""

    def __init__(self, markers: Sequence[str]) -> None:
        """`markers`: what counts as a control token in plain text; all begin with the same character."""
        self._splitter = MarkerSplitter(markers)
        self._answer = AnswerParts()
        self._ended = False
        self._flushed = False

    def feed(self, piece: Segment | str) -> list[Delta]:
        """The deltas that a piece brings. In a str, markers count as control tokens, also when cut in two."""
        if isinstance(piece, str):
            return self._read(self._splitter.feed(piece))
        return self._read([*self._splitter.flush(), piece])

    def flush(self) -> list[Delta]:
        """The deltas that the end of the output brings: what is held back. Nothing is read after it."""
        deltas = self._read(self._splitter.flush())
        self._flushed = True
        return deltas

    def close(self) -> Message:
        """The whole message: what all deltas, those of `flush` included, add up to."""
        self.flush()
        return self._answer.whole()

    def _read(self, segments: list[Segment]) -> list[Delta]:
        deltas: list[Delta] = []
        for segment in segments:
            if self._ended or self._flushed:
                break
            deltas += self._control(segment.text) if segment.kind == "control" else self._text(segment.text)
        return deltas

    def _control(self, marker: str) -> list[Delta]:
        raise NotImplementedError

    def _text(self, text: str) -> list[Delta]:
        raise NotImplementedError
