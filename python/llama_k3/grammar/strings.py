"""Strings that are not quoted: a schema's string values as a Lark terminal of their raw text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import GrammarError
from .nodes import Node, Schema, name_of
from .pattern import ANY_TEXT, literal

_MAX_PARTS = 5_000
_ANY = f"/{ANY_TEXT}/"


_NOTHING = r"/[^\s\S]/"


def terminal(schema: Schema, node: Node, where: str) -> str:
    """The Lark expression of all strings that meet the node. GrammarError: too complex."""
    return _Terminal(schema, where).of(node, frozenset()) or _NOTHING


class _Terminal:
    """Builds the expression of one terminal; None stands for no string at all."""

    def __init__(self, schema: Schema, where: str) -> None:
        self._schema = schema
        self._where = where
        self._parts = 0

    def of(self, node: Node, inside: frozenset[str]) -> str | None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise GrammarError(
                f"{self._where}: found more than {_MAX_PARTS} schemas of a string, wanted fewer"
            )
        if isinstance(node, bool):
            return _ANY if node else None
        types = node.get("type", "string")
        if types != "string" and "string" not in types:
            return None
        parts = [self._own(node), *self._values(node)]
        parts += [self.of(child, inside) for child in node.get("allOf", ())]
        if "anyOf" in node:
            parts.append(_join(" | ", [self.of(child, inside) for child in node["anyOf"]]))
        if "oneOf" in node:
            parts.append(_exactly_one([self.of(child, inside) for child in node["oneOf"]]))
        if "$ref" in node:
            name = name_of(node)
            target = self._schema.definitions[name]
            parts.append(None if name in inside else self.of(target, inside | {name}))
        if None in parts:
            return None
        return _join(" & ", [part for part in parts if part != _ANY] or [_ANY])

    def _own(self, node: dict[str, Any]) -> str:
        """What pattern and lengths ask for."""
        least, most = node.get("minLength", 0), node.get("maxLength")
        parts = [f"/{node['pattern']}/"] if node.get("pattern") else []
        if node.get("pattern") == "":
            parts = ['""']
        if least or most is not None:
            parts.append(f"/(?s:.{{{least},{'' if most is None else most}}})/")
        return _join(" & ", parts or [_ANY]) or _ANY

    def _values(self, node: dict[str, Any]) -> list[str | None]:
        lists = [node["enum"]] if "enum" in node else []
        lists += [[node["const"]]] if "const" in node else []
        return [_one_of([value for value in values if isinstance(value, str)]) for values in lists]


def _one_of(values: list[str]) -> str | None:
    if not values:
        return None
    return f"/{'|'.join(literal(value) for value in values)}/" if any(values) else '""'


def _join(operator: str, parts: Iterable[str | None]) -> str | None:
    """Of alternatives, those that exist; of conditions all exist."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    return present[0] if len(present) == 1 else f"({operator.join(present)})"


def _exactly_one(parts: list[str | None]) -> str | None:
    present = [part for part in parts if part is not None]
    if len(present) < 2:
        return present[0] if present else None
    alternatives: list[str | None] = []
    for index, part in enumerate(present):
        others = " | ".join(other for i, other in enumerate(present) if i != index)
        alternatives.append(f"({part} & {_ANY} & ~({others}))")
    return _join(" | ", alternatives)
