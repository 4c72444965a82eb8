"""The input of a tool_use block: a JSON object, whatever the model wrote in place of one.

Clients parse what is streamed, and some stop with an exception where it is no JSON. So a member of the
object is passed on when it is whole, as at Anthropic; and a value that was broken off is never taken for a
whole one.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal

MAX_DEPTH = 100
"""Levels of a value; the clients' parsers have limits not far above."""

_SPACE = " \t\n\r"
_OUTSIDE_STRING = re.compile(r'["{}\[\],]')
_IN_STRING = re.compile(r'["\\]')


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _number(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refuse(text)


def _is_member(text: str) -> bool:
    """Whether the text is one key and its value, with finite numbers and whole characters."""
    try:
        members = json.loads("{" + text + "}", parse_constant=_refuse, parse_float=_number, parse_int=_number)
        json.dumps(members, ensure_ascii=False).encode()
    except ValueError:
        return False
    return len(members) == 1


class ToolInput:
    """Reads a call's arguments in pieces. What `feed` and `close` return is one JSON object, the same for
    every cut of the text. What is no part of an object, or not whole, becomes its string member `raw`."""

    def __init__(self) -> None:
        self._state: Literal["start", "object", "rest"] = "start"
        # The text since the last whole member; of the object's, how deep and whether in a string it ends.
        self._parts: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._separator = "{"

    def feed(self, piece: str) -> str:
        """The members that are whole now; it may be empty."""
        if self._state == "start":
            piece = piece.lstrip(_SPACE)
            if not piece:
                return ""
            self._state = "object" if piece[0] == "{" else "rest"
            piece = piece[1:] if self._state == "object" else piece
        written = ""
        start, place = 0, 0
        if self._escaped and piece:
            self._escaped, place = False, 1
        while self._state == "object":
            mark = (_IN_STRING if self._in_string else _OUTSIDE_STRING).search(piece, place)
            if mark is None:
                break
            place = mark.end()
            char = mark.group()
            if char == "\\":
                self._escaped = place == len(piece)
                place += 1
            elif self._ends_member(char):
                self._parts.append(piece[start : place - 1])
                written += self._member(char)
                start = place
        self._parts.append(piece[start:])
        return written

    def close(self) -> str:
        """The rest of the object at the end of the text."""
        rest = "".join(self._parts).strip(_SPACE)
        raw = f'{self._separator}"raw": {json.dumps(rest, ensure_ascii=False)}' if rest else ""
        opening = "{" if self._separator == "{" and not raw else ""
        return opening + raw + "}"

    def _ends_member(self, char: str) -> bool:
        """Whether a member ends before this mark, or can be no JSON."""
        if char == '"':
            self._in_string = not self._in_string
            return False
        if char in "{[":
            self._depth += 1
            return self._depth > MAX_DEPTH
        if self._depth == 0:
            return True
        self._depth -= char in "}]"
        return False

    def _member(self, mark: str) -> str:
        """Pass on the member that ends before `mark`; all the rest is no JSON where it is none."""
        text = "".join(self._parts)
        empty = mark == "}" and self._separator == "{" and not text.strip(_SPACE)
        if self._depth or mark == "]" or not (empty or _is_member(text)):
            self._state = "rest"
            self._parts.append(mark)
            return ""
        self._parts.clear()
        if mark == "}":
            self._state = "rest"
        if empty:
            return ""
        written, self._separator = self._separator + text, ","
        return written
