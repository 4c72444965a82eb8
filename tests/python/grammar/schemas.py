"""Schemas of tools that can be enforced, by what is peculiar about them."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
_NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
_FORMATS = ("date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6", "uri")


def _object(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": list(properties) if required is None else required}


TOOLS: dict[str, dict[str, Any]] = {
    "one string": _object(city=TEXT),
    "optional": _object([], a=TEXT, b={"type": "integer"}, c={"type": "boolean"}),
    "no properties": {"type": "object", "properties": {}},
    "any object": {"type": "object"},
    "any schema": {},
    "true": _object(x=True),
    "pattern in a nested object": _object(o=_object(s={"type": "string", "pattern": "^[a-z]+$"})),
    "pattern in an array": _object(l={"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}),
    "pattern of raw text": _object(s={"type": "string", "pattern": "^[a-z]{2,}-\\d+$"}),
    "pattern that is searched": _object(s={"type": "string", "pattern": "[0-9]"}),
    "pattern and lengths": _object(s={"type": "string", "pattern": "b", "minLength": 2, "maxLength": 5}),
    "maxLength 2000": _object(s={"type": "string", "maxLength": 2000}),
    "maxLength 2000 within": _object(l={"type": "array", "items": {"type": "string", "maxLength": 2000}}),
    "minLength": _object(s={"type": "string", "minLength": 12}),
    "enum of strings": _object(e={"type": "string", "enum": ["celsius", "fahr&nheit", 'k"elvin', ""]}),
    "enum of all types": _object(e={"enum": ["é", "a b", 1, 2.5, None, True, [1, "x"], {"k": "v"}]}),
    "constants": _object(a={"const": "x y"}, b={"const": 5}, c={"const": None}, d={"const": {"z": [1, "q"]}}),
    "anyOf": _object(a={"anyOf": [TEXT, {"type": "integer"}, {"type": "null"}]}),
    "anyOf of objects": _object(a={"anyOf": [_object(x=TEXT), _object(y={"type": "number"})]}),
    "types": _object(a={"type": ["string", "null", "integer"], "maxLength": 3, "minimum": 7}),
    "oneOf of constants": _object(k={"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}),
    "oneOf of types": _object(k={"oneOf": [TEXT, {"type": "integer"}, {"type": "array"}]}),
    "allOf": _object(k={"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]}),
    "reference": {
        "definitions": {"e": {"enum": ["red", "green"]}},
        **_object(c={"$ref": "#/definitions/e"}, l={"type": "array", "items": {"$ref": "#/definitions/e"}}),
    },
    "reference into properties": _object(a={"type": "integer", "minimum": 3}, b={"$ref": "#/properties/a"}),
    "recursive list": {"$defs": {"node": _NODE}, **_object(n={"$ref": "#/$defs/node"})},
    "recursive root": {
        **_object(["v"], t={"$ref": "#"}, v={"type": "boolean"}),
        "additionalProperties": False,
    },
    "integers": _object(
        i={"type": "integer", "minimum": -5, "maximum": 120}, m={"type": "integer", "multipleOf": 7}
    ),
    "numbers": _object(x={"type": "number", "exclusiveMinimum": 0, "maximum": 1}, y={"type": "number"}),
    "draft 4 bounds": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        **_object(x={"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 4}),
    },
    "booleans": _object(a={"type": "boolean"}, b={"type": "null"}),
    "arrays": _object(l={"type": "array", "items": _object(d=TEXT), "minItems": 1, "maxItems": 3}),
    "tuple": _object(
        l={"type": "array", "prefixItems": [TEXT, {"type": "integer"}], "items": False, "minItems": 2}
    ),
    "tuple of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_object(l={"type": "array", "items": [TEXT], "additionalItems": {"type": "null"}}),
    },
    "other properties": {**_object(["a", "b"], a=TEXT), "additionalProperties": {"type": "integer"}},
    "any other properties": {**_object(a=TEXT), "additionalProperties": True},
    "only other properties": {"type": "object", "additionalProperties": {"type": "integer"}},
    "required but not declared": _object(["a", "zz"], a=TEXT),
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x": {"type": "integer"}},
        "additionalProperties": False,
    },
    "pattern and properties": {
        **_object(["xa"], xa={}, b=TEXT),
        "patternProperties": {"^x": {"type": "integer"}},
    },
    "one of two required": {
        **_object([], a=TEXT, b=TEXT),
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "root allOf": {"type": "object", "allOf": [_object(a=TEXT), _object(b={"type": "integer"})]},
    "at least one": {"type": "object", "minProperties": 1, "additionalProperties": TEXT},
    "names of an enum": _object(
        m={"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": TEXT}
    ),
    "any names": _object(m={"type": "object", "propertyNames": {"type": "string"}}),
    "names to escape": _object(
        ['we"ird & <|open|> é', "abc"], **{'we"ird & <|open|> é': TEXT, "a": TEXT, "ab": TEXT, "abc": {}}
    ),
    "annotations": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "T",
        **_object(
            a={"type": "string", "description": "x", "default": "q", "examples": ["z"], "deprecated": True}
        ),
        "x-vendor": {"not": 1},
    },
    "nested deep": _object(
        a=_object(b=_object(c=_object(d={"type": "array", "items": {"type": "array", "items": TEXT}})))
    ),
    "more than 64 properties": _object(["p3", "p69"], **{f"p{i}": {"type": "integer"} for i in range(70)}),
    **{f"format {name}": _object(v={"type": "string", "format": name}) for name in _FORMATS},
    "format within": _object(
        l={"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 1}
    ),
}
