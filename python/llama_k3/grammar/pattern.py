r"""Regular expressions of JSON schemas (ECMA-262) as regexes of whole strings, without anchors.

Dialects differ in what ., \d, \w and \s cover. A class here covers only what it covers in all of them
(JavaScript, Python, Rust), so that a text made with it passes every validator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import GrammarError

ANY_TEXT = "(?s:.*)"
_MAX_LENGTH = 10_000
_MAX_DEPTH = 50
_MAX_REPEAT = 100_000
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(,([0-9]*))?\}")
_HEX = re.compile("[0-9a-fA-F]+")
_PROPERTY = re.compile(r"\{[A-Za-z_]+(?:=[A-Za-z_]+)?\}")
_CONTROL_ESCAPES = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}

# Members of a class, by whether all dialects or any dialect counts them in.
_SPACES_ALL = r"\x{9}-\x{d}\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_IN_ALL = {"d": "0-9", "w": "0-9A-Z_a-z", "s": _SPACES_ALL}
_IN_ANY = {
    "d": r"\p{Nd}",
    "w": r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\x{200c}\x{200d}",
    "s": _SPACES_ALL + r"\x{1c}-\x{1f}\x{85}\x{feff}",
}
_DOT = r"[^\x{a}\x{d}\x{85}\x{2028}\x{2029}]"


@dataclass(frozen=True)
class _Atom:
    """A piece of regex without anchors."""

    text: str


@dataclass(frozen=True)
class _Anchor:
    begin: bool


@dataclass(frozen=True)
class _Group:
    """Alternatives, each a sequence of pieces."""

    alternatives: tuple[tuple[_Piece, ...], ...]


_Piece = _Atom | _Anchor | _Group


def literal(text: str) -> str:
    """The regex of one text; holds no character that a quoting around it could touch."""
    return "".join(_character(character) for character in text)


def search(pattern: str, where: str) -> str:
    """The regex of all strings in which `pattern` matches somewhere. GrammarError names `where`."""
    if len(pattern) > _MAX_LENGTH:
        raise GrammarError(f"{where}: found {len(pattern)} characters, wanted at most {_MAX_LENGTH}")
    return _search(_Reader(pattern, where).whole(), True, True, where)


def _character(character: str) -> str:
    return character if character.isascii() and character.isalnum() else rf"\x{{{ord(character):x}}}"


def _has_anchor(piece: _Piece) -> bool:
    if isinstance(piece, _Group):
        return any(_has_anchor(part) for sequence in piece.alternatives for part in sequence)
    return isinstance(piece, _Anchor)


def _search(group: _Group, left: bool, right: bool, where: str) -> str:
    """`left`, `right`: any text may come before and behind what matches."""
    return "|".join(_search_sequence(list(sequence), left, right, where) for sequence in group.alternatives)


def _search_sequence(pieces: list[_Piece], left: bool, right: bool, where: str) -> str:
    while pieces and pieces[0] == _Anchor(begin=True):
        pieces, left = pieces[1:], False
    while pieces and pieces[-1] == _Anchor(begin=False):
        pieces, right = pieces[:-1], False
    if not pieces:
        return ANY_TEXT if left or right else ""
    parts = []
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        if not _has_anchor(piece):
            before = ANY_TEXT if left and index == 0 else ""
            behind = ANY_TEXT if right and index == last else ""
            parts.append(before + _plain(piece) + behind)
        elif isinstance(piece, _Group) and index in (0, last):
            inner = _search(piece, left and index == 0, right and index == last, where)
            parts.append(f"(?:{inner})")
        else:
            raise GrammarError(f"{where}: found an anchor inside, wanted ^ and $ only at the ends")
    return "".join(parts)


def _plain(piece: _Piece) -> str:
    if isinstance(piece, _Group):
        return f"(?:{'|'.join(''.join(_plain(part) for part in seq) for seq in piece.alternatives)})"
    assert isinstance(piece, _Atom)
    return piece.text


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, pattern: str, where: str) -> None:
        self._text = pattern
        self._at = 0
        self._where = where

    def whole(self) -> _Group:
        group = self._alternatives(0)
        if self._at < len(self._text):
            raise self._error("an unmatched )")
        return group

    def _error(self, found: str) -> GrammarError:
        return GrammarError(
            f"{self._where}: found {found} at {self._at} of the pattern {self._text[:80]!r}, wanted a "
            "regular expression of ECMA-262 without look-around, back-references and word boundaries"
        )

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._error("the end")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self, depth: int) -> _Group:
        if depth > _MAX_DEPTH:
            raise self._error(f"groups deeper than {_MAX_DEPTH}")
        alternatives: list[tuple[_Piece, ...]] = []
        sequence: list[_Piece] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._take("|"):
                alternatives.append(tuple(sequence))
                sequence = []
            else:
                sequence.append(self._quantified(self._piece(depth)))
        return _Group((*alternatives, tuple(sequence)))

    def _piece(self, depth: int) -> _Piece:
        if self._take("("):
            return self._group(depth)
        if self._take("["):
            return _Atom(self._class())
        if self._take("\\"):
            return _Atom(self._escape())
        if _QUANTIFIER.match(self._text, self._at):
            raise self._error("nothing to repeat")
        character = self._next()
        if character in "^$":
            return _Anchor(begin=character == "^")
        return _Atom(_DOT if character == "." else _character(character))

    def _group(self, depth: int) -> _Group:
        if self._take("?") and not self._take(":"):
            name = re.compile(r"P?<[A-Za-z_]\w*>").match(self._text, self._at)
            if not name:
                raise self._error("look-around or flags")
            self._at = name.end()
        group = self._alternatives(depth + 1)
        if not self._take(")"):
            raise self._error("the end")
        return group

    def _quantified(self, piece: _Piece) -> _Piece:
        """The piece with its quantifier; a lazy one matches the same strings as a greedy one."""
        found = _QUANTIFIER.match(self._text, self._at)
        if not found:
            return piece
        if _has_anchor(piece):
            raise self._error("a repeated anchor")
        least, most = found.group(1), found.group(3)
        if max(int(least or 0), int(most or 0)) > _MAX_REPEAT:
            raise self._error(f"more than {_MAX_REPEAT} repetitions")
        if least and most and int(least) > int(most):
            raise self._error("repetitions out of order")
        self._at = found.end()
        self._take("?")
        return _Atom(f"(?:{_plain(piece)}){found.group()}")

    def _escape(self) -> str:
        """What follows a backslash outside of a class."""
        character = self._next()
        if character in "dws":
            return f"[{_IN_ALL[character]}]"
        if character in "DWS":
            return f"[^{_IN_ANY[character.lower()]}]"
        if character in "pP":
            return self._property(character)
        return _character(self._escaped_character(character))

    def _property(self, kind: str) -> str:
        found = _PROPERTY.match(self._text, self._at)
        if not found:
            raise self._error(f"\\{kind} without a property")
        self._at = found.end()
        return f"\\{kind}{found.group()}"

    def _escaped_character(self, character: str) -> str:
        if character in _CONTROL_ESCAPES:
            return _CONTROL_ESCAPES[character]
        if character == "c" and re.compile("[A-Za-z]").match(self._text, self._at):
            return chr(ord(self._next()) % 32)
        if character == "x":
            return chr(self._hex(2))
        if character == "u":
            return self._unicode_escape()
        if character.isalnum():
            raise self._error(f"\\{character}")
        return character

    def _unicode_escape(self) -> str:
        if self._take("{"):
            end = self._text.find("}", self._at)
            code = self._hex(end - self._at)
            self._at += 1
        else:
            code = self._hex(4)
            if 0xD800 <= code < 0xDC00 and self._take("\\u"):
                code = 0x10000 + ((code - 0xD800) << 10) + (self._hex(4) - 0xDC00)
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._error("no code of a character")
        return chr(code)

    def _hex(self, digits: int) -> int:
        text = self._text[self._at : self._at + max(digits, 0)]
        if len(text) != digits or digits > 6 or not _HEX.fullmatch(text):
            raise self._error("a malformed code of a character")
        self._at += digits
        return int(text, 16)

    def _class(self) -> str:
        """What follows [, to its ]."""
        negated = self._take("^")
        parts: list[str] = []
        while not self._take("]"):
            first = self._member(negated)
            if isinstance(first, str):
                parts.append(first)
            elif self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 :][:1] != "]":
                parts.append(self._range(first, negated))
            else:
                parts.append(_character(chr(first)))
        if not parts:
            return r"[\s\S]" if negated else r"[^\s\S]"
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def _range(self, first: int, negated: bool) -> str:
        self._at += 1
        last = self._member(negated)
        if isinstance(last, str) or last < first:
            raise self._error("a range out of order")
        return f"{_character(chr(first))}-{_character(chr(last))}"

    def _member(self, negated: bool) -> int | str:
        """A character's code, or the members of a class escape."""
        character = self._next()
        if character != "\\":
            return ord(character)
        character = self._next()
        if character in "dws":
            return (_IN_ANY if negated else _IN_ALL)[character]
        if character in "DWS":
            return f"[^{(_IN_ALL if negated else _IN_ANY)[character.lower()]}]"
        if character in "pP":
            return self._property(character)
        return 8 if character == "b" else ord(self._escaped_character(character))
