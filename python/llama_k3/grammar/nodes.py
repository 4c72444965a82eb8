"""JSON schemas in normal form: nodes, references by name, and what follows from them without a value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Node = dict[str, Any] | bool
"""A schema in normal form. A pattern in it is the regex of whole strings that `pattern.search` gives."""

TYPES = ("string", "number", "boolean", "null", "object", "array")
_SUBSCHEMAS = ("additionalProperties", "items")
_SUBSCHEMA_MAPS = ("properties", "patternProperties")
_SUBSCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")


@dataclass
class Schema:
    """A root and the schemas that its references name."""

    root: Node
    definitions: dict[str, Node] = field(default_factory=dict)
    kinds: dict[str, frozenset[str]] = field(default_factory=dict)
    """Filled by `kinds`."""
    size: int = 0
    """Nodes in all."""

    def at(self, node: Node) -> Node:
        """The node behind a bare reference; False where references only lead to each other."""
        seen: set[str] = set()
        while isinstance(node, dict) and set(node) == {"$ref"}:
            name = name_of(node)
            if name in seen:
                return False
            seen.add(name)
            node = self.definitions[name]
        return node

    def text(self, node: Node) -> str:
        """JSON of a node, with the definitions that it needs."""
        needed: dict[str, Node] = {}
        waiting = list(_references(node))
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed[name] = self.definitions[name]
                waiting += _references(needed[name])
        whole: dict[str, Any] = {"allOf": [node]}
        if isinstance(node, dict) and node and "$ref" not in node:
            whole = dict(node)
        if needed:
            whole["$defs"] = {name: _quoted(needed[name]) for name in sorted(needed)}
        return json.dumps(_quoted(whole), ensure_ascii=True)


def name_of(node: Mapping[str, Any]) -> str:
    """Of the definition that a node refers to."""
    name: str = node["$ref"].removeprefix("#/$defs/")
    return name


def children(node: Node) -> Iterator[tuple[str, Node]]:
    """The schemas directly within a node, with their paths from there."""
    if isinstance(node, bool):
        return
    for key in _SUBSCHEMAS:
        if key in node:
            yield key, node[key]
    for key in _SUBSCHEMA_MAPS:
        yield from ((f"{key}.{name}", child) for name, child in node.get(key, {}).items())
    for key in _SUBSCHEMA_LISTS:
        yield from ((f"{key}[{index}]", child) for index, child in enumerate(node.get(key, ())))


def _references(node: Node) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield name_of(node)
        for _, child in children(node):
            yield from _references(child)


def _quoted(node: Any) -> Any:
    """The node with its regexes as JSON schema has them: anchored, since its patterns are searched for."""
    if not isinstance(node, dict):
        return node
    result = dict(node)
    for key in _SUBSCHEMAS:
        if key in node:
            result[key] = _quoted(node[key])
    for key in (*_SUBSCHEMA_MAPS, "$defs"):
        if key in node:
            result[key] = {
                f"^(?:{name})$" if key == "patternProperties" else name: _quoted(child)
                for name, child in node[key].items()
            }
    for key in _SUBSCHEMA_LISTS:
        if key in node:
            result[key] = [_quoted(child) for child in node[key]]
    if "pattern" in node:
        result["pattern"] = f"^(?:{node['pattern']})$"
    return result


def kinds(schema: Schema, node: Node) -> frozenset[str]:
    """The JSON types that a value of the node may have (integers are numbers); at most these."""
    if not schema.kinds:
        schema.kinds = dict.fromkeys(schema.definitions, frozenset())
        grown = True
        while grown:
            grown = False
            for name in reversed(schema.definitions):
                found = _kinds(schema.kinds, schema.definitions[name])
                if found != schema.kinds[name]:
                    schema.kinds[name] = found
                    grown = True
    return _kinds(schema.kinds, node)


def _kinds(known: Mapping[str, frozenset[str]], node: Node) -> frozenset[str]:
    """`known`: of the definitions."""
    if isinstance(node, bool):
        return frozenset(TYPES if node else ())
    found = frozenset(TYPES)
    if "type" in node:
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
        found = frozenset("number" if kind == "integer" else kind for kind in types)
    if "enum" in node:
        found &= {_kind_of(value) for value in node["enum"]}
    if "const" in node:
        found &= {_kind_of(node["const"])}
    for child in node.get("allOf", ()):
        found &= _kinds(known, child)
    for key in ("anyOf", "oneOf"):
        if key in node:
            found &= frozenset().union(*(_kinds(known, child) for child in node[key]))
    return found & known[name_of(node)] if "$ref" in node else found


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "array" if isinstance(value, list) else "object"


def drop_endless(schema: Schema) -> None:
    """Make False of the references to schemas that no finite value meets, such as a list whose next node is
    required."""
    finite: set[str] = set()
    grown = True
    while grown:
        grown = False
        for name in reversed(schema.definitions):
            if name not in finite and _is_finite(schema.definitions[name], finite):
                finite.add(name)
                grown = True
    if len(finite) < len(schema.definitions):
        schema.root = _without(schema.root, finite)
        schema.definitions = {name: _without(schema.definitions[name], finite) for name in finite}


def _is_finite(node: Node, finite: set[str]) -> bool:
    """Whether some finite value may meet the node, if the definitions in `finite` have one."""
    if isinstance(node, bool):
        return node
    if "$ref" in node and name_of(node) not in finite:
        return False
    if not all(_is_finite(child, finite) for child in node.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in node and not any(_is_finite(child, finite) for child in node[key]):
            return False
    types = node.get("type", TYPES)
    if types == "object" or types == ["object"]:
        properties, others = node.get("properties", {}), node.get("additionalProperties", True)
        return all(_is_finite(properties.get(name, others), finite) for name in node.get("required", ()))
    if types == "array" or types == ["array"]:
        prefix, others = node.get("prefixItems", []), node.get("items", True)
        first = [*prefix, others][: node.get("minItems", 0)]
        return all(_is_finite(child, finite) for child in first)
    return True


def _without(node: Node, finite: set[str]) -> Node:
    if isinstance(node, bool):
        return node
    if "$ref" in node and name_of(node) not in finite:
        return False
    result = dict(node)
    for key in _SUBSCHEMAS:
        if key in node:
            result[key] = _without(node[key], finite)
    for key in _SUBSCHEMA_MAPS:
        if key in node:
            result[key] = {name: _without(child, finite) for name, child in node[key].items()}
    for key in _SUBSCHEMA_LISTS:
        if key in node:
            result[key] = [_without(child, finite) for child in node[key]]
    return result
