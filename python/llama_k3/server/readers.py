"""The reader of answers that are plain texts, beside those of chats (chat.py)."""

from __future__ import annotations

import codecs

from ..tokenizer import Tokenizer
from ..xtml import Delta


class TextReader:
    """Plain text: control tokens are not shown; an incomplete character is held back until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> list[Delta]:
        if self._tokenizer.special_name(token) is not None:
            return self._delta(b"", final=True)
        return self._delta(self._tokenizer.decode_bytes([token]), final=False)

    def flush(self) -> list[Delta]:
        return self._delta(b"", final=True)

    def close_thinking(self, tokenizer: Tokenizer) -> list[int]:
        return []

    def _delta(self, data: bytes, final: bool) -> list[Delta]:
        text = self._decoder.decode(data, final)
        return [Delta("content", text)] if text else []
