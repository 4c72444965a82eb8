"""The arguments of a tool call in XTML: one tag for each property, or the whole object as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import GrammarError
from .lark import Lark
from .nodes import TYPES, Node, Schema, kinds
from .pattern import literal
from .request import Tool
from .strings import terminal

CLOSE_ARGUMENT = '<|close|> "argument" <|sep|>'
_PLAIN_OBJECT = {"type", "properties", "required", "additionalProperties"}
# Rules count the properties in the bits of a 64-bit number.
_MAX_UNORDERED = 64
_KEY = r"/(?:[^\x{0}-\x{1f}\x{22}\x{26}]|&amp;|&quot;){1,256}/"


def escaped(text: str) -> str:
    """As the value of an attribute."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


@dataclass(frozen=True)
class _Property:
    name: str
    node: Node
    required: bool


class Arguments:
    """Writes the rules for the arguments of one tool.

    Where a schema declares properties and does not mention others, others are left out.
    """

    def __init__(self, lark: Lark, tool: Tool, prefix: str) -> None:
        """`prefix`: of the names of the numbered rules."""
        self._lark = lark
        self._tool = tool
        self._prefix = prefix

    def rule(self) -> str:
        """What stands between the tags of the call. GrammarError: the schema takes no object."""
        schema = self._tool.parameters
        if schema is None:
            return '""'
        root = schema.at(schema.root)
        if "object" not in kinds(schema, root):
            raise GrammarError(f"{self._tool.where}: found a schema of no object, wanted type object")
        if root is True:
            root = {}
        assert isinstance(root, dict)
        if not set(root) <= _PLAIN_OBJECT:
            return self._as_json(schema, root)
        return self._as_tags(schema, root)

    def _as_json(self, schema: Schema, root: Node) -> str:
        """For schemas that tie properties to each other."""
        value = self._lark.json(schema, _of_type(root, "object"), self._tool.where)
        return f'<|open|> "json type=\\"object\\"" <|sep|> {value} <|close|> "json" <|sep|>'

    def _as_tags(self, schema: Schema, root: dict[str, Any]) -> str:
        declared: dict[str, Node] = dict(root.get("properties", {}))
        required: list[str] = root.get("required", [])
        others: Node = root.get("additionalProperties", True)
        declared.update({name: others for name in required if name not in declared})
        if "properties" in root and "additionalProperties" not in root:
            others = False
        properties = [
            _Property(name, node, name in required)
            for name, node in declared.items()
            if name in required or kinds(schema, node)
        ]
        tags = [self._tag(schema, prop) for prop in properties]
        other = self._other_tag(schema, others, list(declared)) if kinds(schema, others) else None
        if not properties or len(properties) > _MAX_UNORDERED:
            return self._ordered(properties, tags, other)
        return self._unordered(properties, tags, other)

    def _unordered(self, properties: list[_Property], tags: list[str], other: str | None) -> str:
        """Each property once, in any order; bit n of the rule's number: property n is there."""
        name = f"{self._prefix}_arguments"
        mask = sum(1 << bit for bit, prop in enumerate(properties) if prop.required)
        bits = [f"bit_set({bit})" for bit in range(len(properties)) if mask >> bit & 1]
        alternatives = ['""' + (f" %if {_conjunction(bits)}" if bits else "")]
        for bit, tag in enumerate(tags):
            alternatives.append(f"{tag} {name}::set_bit({bit}) %if bit_clear({bit})")
        if other is not None:
            alternatives.append(f"{other} {name}::_")
        self._lark.numbered(name, alternatives)
        return f"{name}::0"

    def _ordered(self, properties: list[_Property], tags: list[str], other: str | None) -> str:
        parts = [tag if prop.required else f"{tag}?" for prop, tag in zip(properties, tags, strict=True)]
        return " ".join([*parts, f"{other}*"] if other is not None else parts) or '""'

    def _tag(self, schema: Schema, prop: _Property) -> str:
        where = f"{self._tool.where}.properties.{prop.name}"
        return self._argument(self._lark.text(escaped(prop.name)), schema, prop.node, where)

    def _other_tag(self, schema: Schema, node: Node, declared: list[str]) -> str:
        """A property of a name that is not declared."""
        names = "|".join(literal(escaped(name)) for name in declared)
        key = self._lark.key(f"{_KEY} & ~/{names}/" if declared else _KEY)
        return self._argument(key, schema, node, f"{self._tool.where}.additionalProperties")

    def _argument(self, key: str, schema: Schema, node: Node, where: str) -> str:
        admitted = kinds(schema, node)
        types = [kind for kind in TYPES if kind in admitted]
        if not types:
            raise GrammarError(
                f"{where}: found a schema that no value meets, wanted one that some value meets"
            )
        values = []
        for kind in types:
            if kind == "string":
                value = self._lark.terminal(terminal(schema, node, where), where)
            else:
                only = node if types == [kind] else _of_type(node, kind)
                value = self._lark.json(schema, only, where)
            values.append(f'"\\" type=\\"{kind}\\"" <|sep|> {value}')
        return self._lark.rule(f'<|open|> "argument key=\\"" {key} ({" | ".join(values)}) {CLOSE_ARGUMENT}')


def _of_type(node: Node, kind: str) -> Node:
    """The node for values of one type."""
    if isinstance(node, bool):
        return {"type": kind}
    if "type" not in node:
        return {"type": kind, **node}
    if node["type"] == kind:
        return node
    integer = kind == "number" and "integer" in node["type"] and "number" not in node["type"]
    return {**node, "type": "integer" if integer else kind}


def _conjunction(conditions: list[str]) -> str:
    first, *others = conditions
    return f"and({first}, {_conjunction(others)})" if others else first
