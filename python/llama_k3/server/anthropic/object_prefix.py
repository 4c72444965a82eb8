"""The longest part of a growing text that begins a JSON object, and what completes it.

A tool_use block's input is an object, whatever the model wrote: clients parse what has been streamed, and
stop with an exception at text that is no JSON.
"""

from __future__ import annotations

import json
import math
import re
from typing import Literal

MAX_DEPTH = 100
MAX_HELD = 1000
"""Characters of a number, or of white space behind a comma, that are held back until they are whole."""

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(
    r'(?:[^"\\\x00-\x1f\ud800-\udfff]+|\\["\\/bfnrt]'
    r"|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*"
)
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_VALUE_START = frozenset('"{[-0123456789tfn')

_HOLD, _NOT_JSON = -1, -2
"""In place of a position: what follows decides, or the text is not JSON from here on."""

_Expected = Literal["start", "key", "first key", "colon", "value", "first value", "comma", "end"]


def _is_scalar(text: str) -> bool:
    if text in ("true", "false", "null"):
        return True
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


class ObjectPrefix:
    """Reads a text in pieces. What `feed` and `close` return is one JSON object, however the text was cut.

    Lone surrogates, numbers beyond a double and more than MAX_DEPTH levels are no JSON here. A text that
    does not begin an object becomes the string `raw` of one.
    """

    def __init__(self) -> None:
        self._held = ""
        self._closers: list[str] = []
        self._expected: _Expected = "start"
        self._string: Literal["key", "value"] | None = None
        self._broken = False
        self._raw: list[str] | None = None

    def feed(self, piece: str) -> str:
        """The part that is certain now; it may be empty."""
        if self._raw is not None:
            self._raw.append(piece)
            return ""
        if self._expected == "start":
            piece = piece.lstrip(" \t\n\r")
            if piece and not piece.startswith("{"):
                self._raw = [piece]
                return ""
        text, position = self._held + piece, 0
        while not self._broken and position < len(text):
            reached = self._step(text, position)
            if reached < 0:
                self._broken = reached == _NOT_JSON
                break
            position = reached
        self._held = "" if self._broken else text[position:]
        if len(self._held) > MAX_HELD:
            self._broken, self._held = True, ""
        return text[:position]

    def close(self) -> str:
        """What is missing to the object at the end of the text."""
        if self._raw is not None:
            return json.dumps({"raw": "".join(self._raw)}, ensure_ascii=False)
        if self._expected == "start":
            return "{}"
        missing = ""
        if self._string:
            missing = '"'
            self._end_string()
        elif self._expected in ("value", "first value") and _is_scalar(self._held):
            missing = self._held
            self._end_value()
        if self._expected == "colon":
            missing += ": null"
        elif self._expected == "value":
            missing += "null"
        return missing + "".join(reversed(self._closers))

    def _step(self, text: str, start: int) -> int:
        """Where the next part ends, _HOLD or _NOT_JSON."""
        if self._string:
            return self._in_string(text, start)
        space = _SPACE.match(text, start)
        if space and space.end() > start:
            return space.end()
        char = text[start]
        expects_value = self._expected in ("start", "value", "first value")
        if char == '"' and (expects_value or self._expected in ("key", "first key")):
            self._string = "value" if expects_value else "key"
        elif char in "{[" and expects_value and len(self._closers) < MAX_DEPTH:
            self._closers.append("}" if char == "{" else "]")
            self._expected = "first key" if char == "{" else "first value"
        elif char in "}]" and self._closers[-1:] == [char] and self._may_close():
            self._closers.pop()
            self._end_value()
        elif char == ":" and self._expected == "colon":
            self._expected = "value"
        elif char == "," and self._expected == "comma":
            return self._comma(text, start)
        elif expects_value:
            return self._scalar(text, start)
        else:
            return _NOT_JSON
        return start + 1

    def _may_close(self) -> bool:
        return self._expected in ("comma", "first key", "first value")

    def _in_string(self, text: str, start: int) -> int:
        body = _STRING.match(text, start)
        end = body.end() if body else start
        if text[end : end + 1] == '"':
            self._end_string()
            return end + 1
        if end > start:
            return end
        rest = len(text) - end
        return _HOLD if text[end] == "\\" and rest < _LONGEST_ESCAPE else _NOT_JSON

    def _comma(self, text: str, start: int) -> int:
        """A comma is certain once what follows it has begun."""
        space = _SPACE.match(text, start + 1)
        end = space.end() if space else start + 1
        if end == len(text):
            return _HOLD
        if end - start > MAX_HELD:
            return _NOT_JSON
        in_object = self._closers[-1] == "}"
        if text[end] != '"' if in_object else text[end] not in _VALUE_START:
            return _NOT_JSON
        self._expected = "key" if in_object else "value"
        return end

    def _scalar(self, text: str, start: int) -> int:
        scalar = _SCALAR.match(text, start)
        if scalar is None:
            return _NOT_JSON
        if scalar.end() == len(text):
            return _HOLD
        if scalar.end() - start > MAX_HELD or not _is_scalar(scalar.group()):
            return _NOT_JSON
        self._end_value()
        return scalar.end()

    def _end_string(self) -> None:
        if self._string == "key":
            self._expected = "colon"
        else:
            self._end_value()
        self._string = None

    def _end_value(self) -> None:
        self._expected = "comma" if self._closers else "end"
