"""Readers of answers: tokens to deltas, for chats and for plain texts."""

from __future__ import annotations

import codecs

from ..chat import AnswerReader
from ..tokenizer import Tokenizer
from ..xtml import Delta


class ChatReader:
    """The model's chat format."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader

    def feed(self, token: int) -> list[Delta]:
        return self._reader.feed(token)

    def end(self) -> list[Delta]:
        return []


class TextReader:
    """Plain text: control tokens are not shown; an incomplete character is held back until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> list[Delta]:
        if self._tokenizer.special_name(token) is not None:
            return self._delta(b"", final=True)
        return self._delta(self._tokenizer.decode_bytes([token]), final=False)

    def end(self) -> list[Delta]:
        return self._delta(b"", final=True)

    def _delta(self, data: bytes, final: bool) -> list[Delta]:
        text = self._decoder.decode(data, final)
        return [Delta("content", text)] if text else []
