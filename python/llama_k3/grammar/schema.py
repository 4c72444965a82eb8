"""JSON schemas in a normal form: checked, bounded, only keywords that can be enforced, references by name.

What can not be enforced is an error that names keyword and place; annotations are left out. The result means
the same or less: whatever it admits is valid under the schema given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from .errors import GrammarError
from .formats import FORMATS
from .nodes import TYPES, Node, Schema, drop_endless
from .pattern import search

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_DEFINITIONS = 1_000
MAX_LEAST = 100_000
"""Largest minLength and minItems."""
_MAX_MOST = 2**31 - 1
_MAX_NUMBER = 2**53
MAX_PROPERTIES = 500
"""Of one object, and MAX_MULTIPLE the largest multipleOf: compiling takes a time that grows with their square
or with the number itself."""
MAX_MULTIPLE = 10_000
# Keywords of some draft that restrict values and that no grammar here enforces. Keywords of no draft restrict
# nothing: JSON Schema counts them as annotations.
_NOT_ENFORCED = frozenset(
    {
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired"),
        *("dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"),
        *("$recursiveRef", "extends", "disallow", "divisibleBy"),
    }
)


def normalise(schema: Any, where: str) -> Schema:
    """The normal form. `where`: the root's place. GrammarError: what cannot be enforced or is too large."""
    _check_size(schema, where)
    reader = _Reader(schema, where)
    result = Schema(reader.node(schema, where, 0))
    while reader.waiting:
        name, target, place = reader.waiting.pop()
        result.definitions[name] = reader.node(target, place, 0)
    result.size = reader.count
    drop_endless(result)
    return result


def _check_size(schema: Any, where: str) -> None:
    try:
        size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except RecursionError:
        raise GrammarError(
            f"{where}: found a schema too deep to read, wanted at most {MAX_DEPTH} levels"
        ) from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"{where}: found {error}, wanted a JSON schema") from None
    if size > MAX_BYTES:
        raise GrammarError(f"{where}: found a schema of {size} bytes, wanted at most {MAX_BYTES}")


class _Reader:
    """Turns the schemas of one document into nodes. `waiting`: targets of references that are to be read."""

    def __init__(self, document: Any, where: str) -> None:
        self._document = document
        self._where = where
        self._names: dict[str, str] = {}
        self.count = 0
        self.waiting: list[tuple[str, Any, str]] = []

    def node(self, schema: Any, where: str, depth: int) -> Node:
        self.count += 1
        if self.count > MAX_NODES:
            raise GrammarError(
                f"{self._where}: found more than {MAX_NODES} schemas within, wanted at most that many"
            )
        if depth > MAX_DEPTH:
            raise GrammarError(
                f"{self._where}: found schemas nested deeper than {MAX_DEPTH}, wanted at most {MAX_DEPTH}"
            )
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise GrammarError(f"{where}: found {_shown(schema)}, wanted a schema: an object or a boolean")
        node: dict[str, Any] = {}
        for keyword, value in schema.items():
            place = f"{where}.{keyword}"
            if keyword in _NOT_ENFORCED or (keyword == "uniqueItems" and not _is_trivially_unique(schema)):
                raise GrammarError(
                    f"{place}: found a keyword that cannot be enforced, wanted a schema without it"
                )
            if keyword == "$id" and schema is not self._document:
                raise GrammarError(
                    f"{place}: found a schema with its own address, wanted $id only at the root"
                )
            read = _READERS.get(keyword)
            if read is not None:
                read(self, node, value, place, depth + 1, schema)
        return _restricted_names(node, schema, where)

    def reference(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise GrammarError(
                f"{where}: found {_shown(value)}, wanted # or #/..., a place in the same schema"
            )
        if value not in self._names:
            if len(self._names) == MAX_DEFINITIONS:
                raise GrammarError(
                    f"{where}: found more than {MAX_DEFINITIONS} places referred to, wanted fewer"
                )
            self._names[value] = f"d{len(self._names)}"
            self.waiting.append((self._names[value], self._target(value, where), f"{self._where}{value}"))
        node["$ref"] = f"#/$defs/{self._names[value]}"

    def _target(self, pointer: str, where: str) -> Any:
        found: Any = self._document
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise GrammarError(
                    f"{where}: found no {key!r} at {_shown(pointer)}, wanted a place in the schema"
                )
        return found

    def subschema(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        node[where.rsplit(".", 1)[1]] = self.node(value, where, depth)

    def items(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        """`items` of the current draft, or of earlier ones: a list, followed by additionalItems."""
        if not isinstance(value, list):
            node["items"] = self.node(value, where, depth)
            return
        node["prefixItems"] = [self.node(child, f"{where}[{i}]", depth) for i, child in enumerate(value)]
        if "additionalItems" in schema:
            place = where.removesuffix("items") + "additionalItems"
            node["items"] = self.node(schema["additionalItems"], place, depth)

    def subschemas(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        if not isinstance(value, list) or not value:
            raise GrammarError(f"{where}: found {_shown(value)}, wanted a list of schemas")
        keyword = where.rsplit(".", 1)[1]
        node.setdefault(keyword, []).extend(
            self.node(child, f"{where}[{i}]", depth) for i, child in enumerate(value)
        )
        if keyword == "oneOf":
            _join_constants(node)

    def properties(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise GrammarError(f"{where}: found {_shown(value)}, wanted an object of schemas")
        if len(value) > MAX_PROPERTIES:
            raise GrammarError(f"{where}: found {len(value)} properties, wanted at most {MAX_PROPERTIES}")
        node["properties"] = {
            name: self.node(child, f"{where}.{name}", depth) for name, child in value.items()
        }

    def pattern_properties(
        self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any
    ) -> None:
        if not isinstance(value, Mapping):
            raise GrammarError(f"{where}: found {_shown(value)}, wanted an object of schemas")
        node["patternProperties"] = {
            search(name, f"{where}.{name}"): self.node(child, f"{where}.{name}", depth)
            for name, child in value.items()
        }

    def type(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        types = value if isinstance(value, list) else [value]
        for kind in types:
            if not isinstance(kind, str) or kind not in (*TYPES, "integer"):
                raise GrammarError(f"{where}: found {_shown(value)}, wanted {', '.join(TYPES)} or integer")
        if not types:
            raise GrammarError(f"{where}: found an empty list, wanted at least one type")
        node["type"] = value if len(types) > 1 else types[0]

    def enum(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        if not isinstance(value, list) or not value:
            raise GrammarError(f"{where}: found {_shown(value)}, wanted a list of values")
        for index, member in enumerate(value):
            _check_value(member, f"{where}[{index}]")
        node["enum"] = value

    def constant(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        _check_value(value, where)
        node["const"] = value

    def required(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise GrammarError(f"{where}: found {_shown(value)}, wanted a list of property names")
        node["required"] = list(dict.fromkeys(value))

    def least(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        count = _count(value, where)
        keyword = where.rsplit(".", 1)[1]
        if count > MAX_LEAST:
            raise GrammarError(f"{where}: found {count}, wanted at most {MAX_LEAST}")
        if keyword == "minProperties" and count > len(schema.get("required") or ()) + 1:
            raise GrammarError(
                f"{where}: found {count}, wanted at most one more than there are required properties: "
                "other names may come twice"
            )
        if count:
            node[keyword] = count

    def most(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        count = _count(value, where)
        if count <= _MAX_MOST:
            node[where.rsplit(".", 1)[1]] = count

    def pattern(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        if not isinstance(value, str):
            raise GrammarError(f"{where}: found {_shown(value)}, wanted a regular expression")
        _add_pattern(node, search(value, where))

    def format(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        types = schema.get("type", "string")
        if types != "string" and not (isinstance(types, list) and "string" in types):
            return
        if value not in FORMATS:
            raise GrammarError(f"{where}: found {_shown(value)}, wanted one of {', '.join(sorted(FORMATS))}")
        _add_pattern(node, search(f"^(?:{FORMATS[value]})$", where))

    def bound(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        """Of a number; a boolean exclusive bound (draft 4) makes the plain one exclusive."""
        keyword = where.rsplit(".", 1)[1]
        if isinstance(value, bool) and keyword.startswith("exclusive"):
            plain = keyword.removeprefix("exclusive").lower()
            if value and plain in schema:
                node[keyword] = _number(schema[plain], where)
            return
        node[keyword] = _number(value, where)

    def multiple(self, node: dict[str, Any], value: Any, where: str, depth: int, schema: Any) -> None:
        if _number(value, where) <= 0:
            raise GrammarError(f"{where}: found {value}, wanted a number above 0")
        if value > MAX_MULTIPLE:
            raise GrammarError(f"{where}: found {value}, wanted at most {MAX_MULTIPLE}")
        node["multipleOf"] = value


_Read = Callable[[_Reader, dict[str, Any], Any, str, int, Any], None]
_READERS: dict[str, _Read] = {
    "$ref": _Reader.reference,
    "type": _Reader.type,
    "enum": _Reader.enum,
    "const": _Reader.constant,
    "properties": _Reader.properties,
    "patternProperties": _Reader.pattern_properties,
    "additionalProperties": _Reader.subschema,
    "required": _Reader.required,
    "items": _Reader.items,
    "pattern": _Reader.pattern,
    "format": _Reader.format,
    "multipleOf": _Reader.multiple,
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _Reader.subschemas),
    **dict.fromkeys(("minLength", "minItems", "minProperties"), _Reader.least),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), _Reader.most),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _Reader.bound),
}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise GrammarError(f"{where}: found {_shown(value)}, wanted a finite number")
    if abs(value) > _MAX_NUMBER:
        raise GrammarError(f"{where}: found {_shown(value)}, wanted at most 2^53 in magnitude")
    return value


def _count(value: Any, where: str) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < 0:
        raise GrammarError(f"{where}: found {_shown(value)}, wanted an integer of at least 0")
    return int(value)


def _check_value(value: Any, where: str) -> None:
    """Numbers in a constant are compared as doubles."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _number(value, where)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _check_value(child, f"{where}[{index}]")
    elif isinstance(value, Mapping):
        for name, child in value.items():
            _check_value(child, f"{where}.{name}")


def _is_trivially_unique(schema: Mapping[str, Any]) -> bool:
    most = schema.get("maxItems")
    return schema["uniqueItems"] is False or (isinstance(most, int) and most <= 1)


def _add_pattern(node: dict[str, Any], regex: str) -> None:
    if "pattern" in node:
        node.setdefault("allOf", []).append({"pattern": regex})
    else:
        node["pattern"] = regex


def _join_constants(node: dict[str, Any]) -> None:
    """oneOf of different strings (each with its own description) means the same as anyOf."""
    values: list[Any] = []
    for child in node["oneOf"]:
        if not isinstance(child, dict) or not {"const", "enum"} & set(child):
            return
        values += child.get("enum", [child.get("const")])
    if all(isinstance(value, str) for value in values) and len(set(values)) == len(values):
        node.setdefault("allOf", []).append({"anyOf": node.pop("oneOf")})


def _restricted_names(node: dict[str, Any], schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The node with propertyNames put into other keywords."""
    names = schema.get("propertyNames", True)
    if names is True or names == {} or names == {"type": "string"}:
        return node
    place = f"{where}.propertyNames"
    bare = {key: value for key, value in names.items() if key != "type"} if isinstance(names, Mapping) else {}
    taken = "properties" in node or "patternProperties" in node
    if taken or len(bare) != 1 or names.get("type", "string") != "string":
        raise GrammarError(
            f"{place}: found a keyword that cannot be enforced here, wanted a schema without it"
        )
    others = node.pop("additionalProperties", True)
    if "pattern" in bare and isinstance(bare["pattern"], str):
        node["patternProperties"] = {search(bare["pattern"], place): others}
    elif "enum" in bare and isinstance(bare["enum"], list):
        node["properties"] = {name: others for name in bare["enum"] if isinstance(name, str)}
    else:
        raise GrammarError(
            f"{place}: found a keyword that cannot be enforced here, wanted a schema without it"
        )
    node["additionalProperties"] = False
    return node
