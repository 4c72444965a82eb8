"""What cannot be enforced is an error that names it; nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest
from llama_k3.errors import ArgumentError
from llama_k3.grammar import GrammarCompiler, GrammarError

from .walks import tool

TEXT = {"type": "string"}
PLACE = "tools[0].function.parameters"
NAMED: list[tuple[Any, str]] = [
    ({"not": {}}, "not"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": TEXT}, "contains"),
    ({"type": "object", "propertyNames": {"minLength": 3}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"$dynamicRef": "#x"}, "$dynamicRef"),
    ({"type": "strin"}, "type"),
    ({"type": []}, "type"),
    ({"enum": []}, "enum"),
    ({"enum": [1, [2**60]]}, "enum[1][0]"),
    ({"minimum": float("nan")}, "minimum"),
    ({"type": "number", "multipleOf": 0}, "multipleOf"),
    ({"minLength": -1}, "minLength"),
    ({"minLength": 1.5}, "minLength"),
    ({"required": "a"}, "required"),
    ({"items": 5}, "items"),
    ({"allOf": []}, "allOf"),
    ({"anyOf": [TEXT, 7]}, "anyOf[1]"),
    ({"type": "array", "minItems": 10**9}, "minItems"),
    ({"type": "object", "minProperties": 3}, "minProperties"),
    ({"type": "string", "pattern": "a(?=b)"}, "pattern"),
    ({"type": "string", "format": "iri"}, "format"),
    ({"$ref": "#/nowhere"}, "$ref"),
    ({"$ref": "http://example.com/schema"}, "$ref"),
    ({"properties": {"x": {"$id": "http://example.com/x"}}}, "properties.x.$id"),
]
UNMEETABLE: list[tuple[Any, str]] = [
    ({"type": "string", "enum": [1]}, ""),
    ({"type": "integer", "minimum": 5, "maximum": 4}, ""),
    ({"type": "string", "pattern": "^[0-9]{5}$", "maxLength": 3}, ""),
    (
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "string", "pattern": "^[0-9]{5}$", "maxLength": 3},
        },
        ".items",
    ),
    ({"type": "object", "properties": {"z": False}, "required": ["z"]}, ""),
    ({"$ref": "#/properties/v"}, ""),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ""),
    (
        {
            "type": "array",
            "items": {"properties": {"z": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
        },
        ".items.properties.z",
    ),
]


def refused(compiler: GrammarCompiler, **asked: Any) -> str:
    with pytest.raises(GrammarError) as found:
        compiler.chat(**asked)
    assert isinstance(found.value, ArgumentError)
    assert "found" in str(found.value) and "wanted" in str(found.value) and len(str(found.value)) < 600
    return str(found.value)


def in_property(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}, "required": ["v"]}


@pytest.mark.parametrize(("schema", "keyword"), NAMED, ids=[place for _, place in NAMED])
def test_keyword_is_named(schema: Any, keyword: str, compiler: GrammarCompiler) -> None:
    tools = [tool("f", in_property(schema))]
    assert refused(compiler, tools=tools).startswith(f"{PLACE}.properties.v.{keyword}: found ")
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": in_property(schema)}}
    assert refused(compiler, response_format=wanted).startswith(
        f"response_format.json_schema.schema.properties.v.{keyword}: found "
    )
    with pytest.raises(GrammarError, match="^json_schema.properties.v."):
        compiler.json_schema(in_property(schema))


@pytest.mark.parametrize(("schema", "place"), UNMEETABLE, ids=[str(schema)[:40] for schema, _ in UNMEETABLE])
def test_innermost_schema_is_named(schema: Any, place: str, compiler: GrammarCompiler) -> None:
    others = [tool(f"t{number}", in_property({"type": "array", "items": TEXT})) for number in range(5)]
    tools = [tool("f", in_property(schema)), *others]
    assert refused(compiler, tools=tools).startswith(f"{PLACE}.properties.v{place}: found ")


def test_endless_values_are_refused(compiler: GrammarCompiler) -> None:
    """Each value would have to hold another one."""
    for schema in (
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {
            "$defs": {"a": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/a"}}},
            **in_property({"$ref": "#/$defs/a"}),
        },
    ):
        refused(compiler, tools=[tool("f", schema)])
    optional = {
        "$defs": {"a": in_property({"$ref": "#/$defs/a"})},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    assert compiler.chat([tool("f", optional)]) is not None


def test_bounds(compiler: GrammarCompiler) -> None:
    deep: Any = TEXT
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    assert "deeper than 64" in refused(compiler, tools=[tool("f", in_property(deep))])
    very_deep: Any = {}
    for _ in range(100_000):
        very_deep = {"a": very_deep}
    refused(compiler, tools=[tool("f", very_deep)])
    assert "300" in refused(compiler, tools=[tool("f", {"type": "object", "description": "x" * 300_000})])
    assert "at most 512" in refused(compiler, tools=[tool(f"t{number}") for number in range(513)])
    many = {"type": "object", "properties": {f"p{number}": {} for number in range(450)}}
    assert "at most 20000" in refused(compiler, tools=[tool(f"t{number}", many) for number in range(45)])
    names = [[f"{'p' * 99}{t}_{number}" for number in range(450)] for t in range(40)]
    long = [tool(f"t{t}", {"type": "object", "properties": dict.fromkeys(names[t], {})}) for t in range(40)]
    assert "characters of rules" in refused(compiler, tools=long)


def test_costly_schemas_compile_or_are_refused(compiler: GrammarCompiler) -> None:
    """Products of repetitions, of references and of alternatives end at once, one way or the other."""
    shared = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    both = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    one_of_ten = {"anyOf": [{"required": [f"a{number}"]} for number in range(10)]}
    for schema in (
        in_property({"type": "string", "pattern": "(a{1000}){1000}"}),
        in_property(
            {"type": "array", "items": {"type": "string", "pattern": "(a{1000}){1000}"}, "maxItems": 10**9}
        ),
        in_property({"type": "string", "pattern": "((a*)*)*b"}),
        in_property({"type": "string", "pattern": "(.{0,1000}x){500}"}),
        in_property({"type": "string", "maxLength": 2**40}),
        {"$defs": {**shared, "d30": TEXT}, **in_property({"$ref": "#/$defs/d0"})},
        {"$defs": {**both, "d30": {"type": "integer"}}, **in_property({"$ref": "#/$defs/d0"})},
        {"type": "object", "allOf": [one_of_ten] * 6},
    ):
        try:
            assert compiler.chat([tool("f", schema)]) is not None
        except GrammarError as error:
            assert "tools[0]" in str(error)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\]: .*type function"),
        ({"tools": [tool("f"), tool("f")]}, r"tools\[1\].function.name: .*second time"),
        ({"tools": [tool("")]}, r"tools\[0\].function.name"),
        ({"tools": [tool("f", [])]}, r"tools\[0\].function.parameters: .*schema"),
        ({"tools": [tool("f", {"type": "string"})]}, r"parameters: .*type object"),
        ({"tools": [tool("f", {"type": "object", "x": object()})]}, "request: "),
        ({"tool_choice": "required"}, "tool_choice: .*at least one tool"),
        ({"tools": [tool("f")], "tool_choice": "any"}, "tool_choice: found 'any'"),
        ({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "found 'g'"),
        (
            {"tools": [tool("f")], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x"}}},
            "mode",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type: found 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: found no schema"),
        ({"response_format": "json"}, "response_format.type"),
    ],
)
def test_request_is_checked(asked: dict[str, Any], message: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match=message):
        compiler.chat(**asked)


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": "integer", "multipleOf": 982451653}, "multipleOf: found 982451653, wanted at most 10000"),
        ({"properties": {f"p{i}": {} for i in range(501)}}, "found 501 properties, wanted at most 500"),
    ],
)
def test_what_would_take_long_to_compile(schema: Any, error: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match=error):
        compiler.json_schema(schema)
