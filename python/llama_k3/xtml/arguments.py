"""Arguments of tool calls between JSON, as clients see them, and XTML's argument tags; no byte is lost.

A client sends back the JSON text that it was given. Values therefore go from one form to the other as they
are written (1e2 stays 1e2, spaces stay), never through Python numbers. No depth of nesting is too deep.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

KINDS = ("string", "number", "boolean", "null", "object", "array")
"""Types of an argument in XTML, which are JSON's."""

_SPACE = re.compile(r"[ \t\n\r]*")
_KIND_OF_START = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
_TOKEN = re.compile(
    r'[ \t\n\r]*(?:(?P<mark>[\[{\]},:])|(?P<text>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<plain>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null))"
)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# Numbers are not converted: their size would be limited.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def quote(text: str) -> str:
    """The text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def value_kind(text: str) -> str | None:
    """JSON's type of the value that the whole text is; None where it is no JSON."""
    start = _after_space(text, 0)
    end = _value_end(text, start)
    if end is None or _after_space(text, end) != len(text):
        return None
    return _kind_at(text, start)


def _kind_at(text: str, start: int) -> str:
    return _KIND_OF_START.get(text[start], "number")


def _after_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()


def _value_end(text: str, start: int) -> int | None:
    """End of the JSON value that begins here, None where none does."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except ValueError:
        return None
    except RecursionError:
        return deep_value_end(text, start)


def deep_value_end(text: str, start: int) -> int | None:
    """_value_end for any depth of nesting: slower, without recursion."""
    closers: list[str] = []
    place = start
    # What may come next: a value, a value or the end, a key or the end, a key, a colon, a comma or the end.
    state = "value"
    while token := _TOKEN.match(text, place):
        if place == start and token.start(token.lastgroup or 0) != start:
            return None
        place = token.end()
        mark, is_text = token["mark"], token["text"] is not None
        if state in ("key", "key?") and is_text:
            state = "colon"
        elif state == "colon" and mark == ":":
            state = "value"
        elif state == "more" and mark == ",":
            state = "key" if closers[-1] == "}" else "value"
        elif state in ("value", "value?") and (mark is None or mark in "[{"):
            if mark is None:
                state = "more"
            else:
                closers.append("]" if mark == "[" else "}")
                state = "value?" if mark == "[" else "key?"
        elif state in ("more", "value?", "key?") and mark == closers[-1]:
            closers.pop()
            state = "more"
        else:
            return None
        if not closers:
            return place
    return None


@dataclass(frozen=True)
class Argument:
    """One argument. `value`: a string's text, or the JSON of everything else as it was written."""

    key: str
    kind: str
    value: str


def split_object(text: str) -> list[Argument] | None:
    """The members of a JSON object, in order, repeated keys too. None: the text is no JSON object.

    In a text of ArgumentWriter's layout ({"a": 1, "b": 2}) further space around a value belongs to it, since
    the model wrote it; in other layouts it does not.
    """
    members: list[tuple[str, int, int, int, int]] = []
    own = text.startswith("{")
    place = _after_space(text, 0)
    if text[place : place + 1] != "{":
        return None
    after = _after_space(text, place + 1)
    if text[after : after + 1] == "}":
        return [] if _after_space(text, after + 1) == len(text) else None
    while True:
        start = place + 1
        place = _after_space(text, start)
        own = own and place == (start + 1 if members else start)
        if text[place : place + 1] != '"':
            return None
        try:
            key, place = scanstring(text, place + 1, True)
        except ValueError:
            return None
        own = own and text.startswith(": ", place)
        place = _after_space(text, place)
        if text[place : place + 1] != ":":
            return None
        value = _after_space(text, place + 1)
        end = _value_end(text, value)
        if end is None:
            return None
        members.append((key, place + 2, value, end, _after_space(text, end)))
        place = members[-1][-1]
        if text[place : place + 1] == "}":
            break
        if text[place : place + 1] != ",":
            return None
    if _after_space(text, place + 1) != len(text):
        return None
    return [_argument(text, own, *member) for member in members]


def _argument(text: str, own: bool, key: str, outer: int, start: int, end: int, outer_end: int) -> Argument:
    kind = _kind_at(text, start)
    if kind == "string":
        return Argument(key, kind, scanstring(text, start + 1, True)[0])
    return Argument(key, kind, text[outer:outer_end] if own else text[start:end])


@dataclass
class ArgumentWriter:
    """Writes the JSON text of one call's arguments while they come. Every method returns what it adds.

    A string grows with every piece; any other value is written when it is whole, since it becomes a string
    where it is not JSON of its type. A call has argument tags or one raw text; whichever comes second is
    dropped.
    """

    _form: str = ""
    """Empty (nothing written), "object" or "raw"."""
    _open: str = ""
    """The value being written: none, "string", "value", "raw" or "dropped"."""
    _head: str = ""
    _kind: str = ""
    _parts: list[str] = field(default_factory=list)
    _blank: bool = True

    def begin(self, key: str, kind: str) -> str:
        """An argument. `kind`: the type named; an empty one counts as string."""
        written = self.end()
        if self._form == "raw":
            self._open = "dropped"
            return written
        head = f"{', ' if self._form else '{'}{quote(key)}: "
        self._form = "object"
        if kind in ("", "string"):
            self._open = "string"
            return f'{written}{head}"'
        self._open, self._head, self._kind = "value", head, kind
        return written

    def begin_raw(self) -> str:
        """The arguments as one text."""
        written = self.end()
        self._open = "dropped" if self._form else "raw"
        return written

    def write(self, text: str) -> str:
        """Text of the value being written. Text of a call without tags is its raw arguments."""
        if self._open == "string":
            return quote(text)[1:-1]
        if self._open == "value":
            self._parts.append(text)
            return ""
        if not self._open and not self._form:
            text = text.lstrip(" \t\n\r")
            self._open = "raw" if text else ""
        if self._open != "raw" or not text:
            return ""
        self._form = "raw"
        self._blank = self._blank and not text.strip(" \t\n\r")
        return text

    def end(self) -> str:
        """The value is over."""
        opened, self._open = self._open, ""
        if opened == "string":
            return '"'
        return self._value() if opened == "value" else ""

    def _value(self) -> str:
        value = "".join(self._parts)
        self._parts.clear()
        kind = value_kind(value)
        if kind is None or (self._kind in KINDS and kind != self._kind):
            value = quote(value)
        return self._head + value

    def finish(self) -> str:
        """The call is over."""
        written = self.end()
        if self._form == "object":
            return written + "}"
        return "{}" if self._blank else written

    def cut(self) -> str:
        """The answer breaks off: what is held back, unfinished as it is."""
        held = self._head + "".join(self._parts) if self._open == "value" else ""
        self._open = "dropped"
        self._parts.clear()
        return held
