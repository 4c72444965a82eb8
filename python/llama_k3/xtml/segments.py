"""Segments: control tokens and text kept apart, on their way to token ids and from a model's text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..tokenizer import Tokenizer

OPEN, CLOSE, SEP, END_OF_MESSAGE = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
MARKERS = (OPEN, CLOSE, SEP, END_OF_MESSAGE)
# Control tokens behind a whole message, of K3 and of K2.
_MESSAGE_ENDS = frozenset([END_OF_MESSAGE, "<|im_end|>"])


@dataclass(frozen=True)
class Segment:
    """A control token by its name, or plain text."""

    kind: Literal["control", "text"]
    text: str


def control(marker: str) -> Segment:
    return Segment("control", marker)


def text_segments(*texts: str) -> list[Segment]:
    """Each text that is not empty."""
    return [Segment("text", text) for text in texts if text]


def open_tag(name: str, /, **attributes: object) -> list[Segment]:
    """<|open|>NAME key="value"<|sep|>. The header's pieces are segments of their own (encoding_k3.py)."""
    header = [name]
    for key, value in attributes.items():
        header += [f" {key}", '="', str(value).replace("&", "&amp;").replace('"', "&quot;"), '"']
    return [control(OPEN), *text_segments(*header), control(SEP)]


def close_tag(name: str) -> list[Segment]:
    return [control(CLOSE), Segment("text", name), control(SEP)]


def text_of(segments: Iterable[Segment]) -> str:
    """The segments as one text; for people, since it no longer tells control tokens from text."""
    return "".join(segment.text for segment in segments)


def encode(segments: Iterable[Segment], tokenizer: Tokenizer) -> list[int]:
    """Token ids. Text never becomes a control token."""
    return encode_with_boundaries(segments, tokenizer)[0]


def encode_with_boundaries(segments: Iterable[Segment], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Token ids, and the positions in them behind each whole message.

    Each segment is encoded by itself, as the model's own encoder does: a token never spans two of them.
    """
    ids: list[int] = []
    boundaries: list[int] = []
    for segment in segments:
        if segment.kind == "text":
            ids += tokenizer.encode(segment.text)
            continue
        ids.append(tokenizer.special_id(segment.text))
        if segment.text in _MESSAGE_ENDS:
            boundaries.append(len(ids))
    return ids, boundaries


class MarkerSplitter:
    """Cuts text that comes in pieces into segments. Markers count as control tokens, also when cut in two."""

    def __init__(self, markers: Sequence[str]) -> None:
        """`markers` all begin with the same character."""
        self._start = markers[0][0]
        self._marker = re.compile("|".join(re.escape(marker) for marker in markers))
        self._prefixes = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._longest = max(len(marker) for marker in markers) - 1
        self._held = ""

    def feed(self, piece: str) -> list[Segment]:
        """The segments that are sure by now; an end that may become a marker is held back."""
        text = self._held + piece
        if self._start not in text:
            return text_segments(text)
        segments: list[Segment] = []
        start = 0
        for marker in self._marker.finditer(text):
            segments += [*text_segments(text[start : marker.start()]), control(marker.group())]
            start = marker.end()
        rest = text[start:]
        sizes = range(min(self._longest, len(rest)), 0, -1)
        held = next((size for size in sizes if rest[-size:] in self._prefixes), 0)
        self._held = rest[len(rest) - held :]
        return segments + text_segments(rest[: len(rest) - held])

    def flush(self) -> list[Segment]:
        """What is held back, as text."""
        held, self._held = self._held, ""
        return text_segments(held)
