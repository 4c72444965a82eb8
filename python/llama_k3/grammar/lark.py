"""A grammar in llguidance's Lark dialect, rule by rule; equal rules are written once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import GrammarError
from .nodes import Node, Schema
from .pattern import literal

MAX_SIZE = 2 * 1024 * 1024
# Between the tokens of JSON. Bounded, so that a model cannot go on with white space for ever.
_WHITE_SPACE = r"[ \n\r\t]{1,128}"
_OPTIONS = f'"x-guidance": {{"whitespace_pattern": {json.dumps(_WHITE_SPACE)}}}'


@dataclass(frozen=True)
class Piece:
    """A schema that is part of the grammar, and where it came from."""

    schema: Schema
    node: Node
    where: str


class Lark:
    """Rules in the order they were added. `pieces`, `terminals`: what of it came from schemas."""

    def __init__(self, text_ids: Iterable[int]) -> None:
        """`text_ids`: the ids of all tokens that are no control tokens."""
        self._names: dict[str, str] = {}
        self._lines: list[str] = []
        self._any_tokens = f"<[{','.join(_ranges(sorted(text_ids)))}]>"
        self._size = 0
        self.pieces: list[Piece] = []
        self.terminals: dict[str, str] = {}
        """Where each expression of a terminal came from."""

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        return self._named("r", body)

    def numbered(self, name: str, alternatives: Sequence[str]) -> None:
        """A rule that carries a number: its alternatives, which may have conditions on it."""
        self._add(f"{name}::_: " + "\n  | ".join(alternatives))

    def text(self, text: str) -> str:
        """Exactly this text."""
        return self._named("TEXT", f"/{literal(text)}/")

    def terminal(self, expression: str, where: str) -> str:
        """A terminal of raw text, from the schema at `where`."""
        name = self._named("STRING", expression)
        self.terminals.setdefault(expression, where)
        return name

    def key(self, expression: str) -> str:
        """A terminal of names; some name meets it."""
        return self._named("KEY", expression)

    def any_tokens(self) -> str:
        """Any text, also one that is not UTF-8 or breaks off within a character."""
        return self.rule(f"{self._any_tokens}*")

    def json(self, schema: Schema, node: Node, where: str) -> str:
        """A rule for a value as JSON."""
        self.pieces.append(Piece(schema, node, where))
        return self._named("json", _json_body(schema, node))

    def whole(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines, ""])

    def _named(self, prefix: str, body: str) -> str:
        if body not in self._names:
            self._names[body] = f"{prefix}_{len(self._names)}"
            self._add(f"{self._names[body]}: {body}")
        return self._names[body]

    def _add(self, line: str) -> None:
        self._size += len(line)
        if self._size > MAX_SIZE:
            raise GrammarError(
                f"grammar: found more than {MAX_SIZE} characters of rules, wanted simpler schemas"
            )
        self._lines.append(line)


def choice(pieces: Sequence[Piece]) -> str:
    """A grammar of a value that meets one of the pieces."""
    lines = [f"piece_{number}: {_json_body(piece.schema, piece.node)}" for number, piece in enumerate(pieces)]
    return "\n".join([f"start: {' | '.join(f'piece_{number}' for number in range(len(pieces)))}", *lines, ""])


def _json_body(schema: Schema, node: Node) -> str:
    return f"%json {{{_OPTIONS}, {schema.text(node)[1:]}"


def _ranges(ids: Sequence[int]) -> list[str]:
    ranges: list[list[int]] = []
    for index in ids:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return [f"{first}-{last}" for first, last in ranges]
