"""Chat formats: what a user's message adds to a sequence, and how the model's answer is read.

Kimi-K3 talks XTML (xtml.py); Kimi-Linear uses Kimi-K2's turn markers. The vocabulary tells which: the same
ids have other names in the two.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from . import xtml
from .tokenizer import Tokenizer
from .xtml import Delta, Segment

_K2_MARKERS = ("<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>")


class AnswerReader(Protocol):
    """Reads one answer token by token."""

    def feed(self, token: int) -> list[Delta]:
        """What the token adds to the answer."""

    def finish(self) -> list[Segment]:
        """What ends the answer in proper form where it stopped before its own end."""


class ChatFormat(Protocol):
    """How the turns of a dialogue look to the model."""

    def first(self) -> list[Segment]:
        """What comes before the first message."""

    def turn(self, text: str) -> list[Segment]:
        """A user's message and the opening of the answer."""

    def reader(self, tokenizer: Tokenizer) -> AnswerReader:
        """For the answer to a turn."""


class _TokenText:
    """Tokens as segments; an incomplete character is held back until it is whole or a control token comes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def segments(self, token: int) -> list[Segment]:
        name = self._tokenizer.special_name(token)
        if name is None:
            return [Segment("text", self._decoder.decode(self._tokenizer.decode_bytes([token])))]
        return [Segment("text", self._decoder.decode(b"", final=True)), Segment("control", name)]


class _K3Reader:
    """Channels and calls of XTML."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text = _TokenText(tokenizer)
        self._parser = xtml.StreamParser("think")

    def feed(self, token: int) -> list[Delta]:
        return [delta for segment in self._text.segments(token) for delta in self._parser.feed(segment)]

    def finish(self) -> list[Segment]:
        return self._parser.closing()


class K3Chat:
    """XTML with the think channel, at the highest thinking effort."""

    def first(self) -> list[Segment]:
        return xtml.preamble()

    def turn(self, text: str) -> list[Segment]:
        return xtml.user_message(text) + xtml.generation_prompt()

    def reader(self, tokenizer: Tokenizer) -> AnswerReader:
        return _K3Reader(tokenizer)


class _K2Reader:
    """All text is content; control tokens are not shown."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text = _TokenText(tokenizer)

    def feed(self, token: int) -> list[Delta]:
        texts = [segment.text for segment in self._text.segments(token) if segment.kind == "text"]
        return [Delta("content", text) for text in texts if text]

    def finish(self) -> list[Segment]:
        return [Segment("control", "<|im_end|>")]


class K2Chat:
    """<|im_user|>user<|im_middle|>...<|im_end|>, without a system message."""

    def first(self) -> list[Segment]:
        return []

    def turn(self, text: str) -> list[Segment]:
        user, assistant, middle, end = (Segment("control", marker) for marker in _K2_MARKERS)
        return [
            *(user, Segment("text", "user"), middle, Segment("text", text), end),
            *(assistant, Segment("text", "assistant"), middle),
        ]

    def reader(self, tokenizer: Tokenizer) -> AnswerReader:
        return _K2Reader(tokenizer)


def chat_format(tokenizer: Tokenizer) -> ChatFormat | None:
    """The format of the vocabulary's markers; None where it has none of either kind."""
    if all(marker in tokenizer.special_ids for marker in xtml.MARKERS):
        return K3Chat()
    if all(marker in tokenizer.special_ids for marker in _K2_MARKERS):
        return K2Chat()
    return None
