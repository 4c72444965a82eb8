"""What a chat request asks of the answer: tools, the choice among them and a response format, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import GrammarError
from .nodes import Schema
from .schema import MAX_NODES, normalise

MAX_TOOLS = 512
_MAX_NAME = 256


@dataclass(frozen=True)
class Tool:
    """`parameters`: of its arguments, None: it takes none. `where`: place of the schema in the request."""

    name: str
    parameters: Schema | None
    where: str


@dataclass(frozen=True)
class Wanted:
    """`tools`: those that may be called. `response`: of the content, None: any text."""

    tools: tuple[Tool, ...]
    must_call: bool
    one_call: bool
    response: Schema | None


def read(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: Any,
    response_format: Mapping[str, Any] | None,
    parallel_tool_calls: bool,
) -> Wanted | None:
    """None: nothing is asked. Errors: GrammarError."""
    response = _response(response_format)
    declared = _declared(tools or ())
    names, must_call = _choice(tool_choice, declared)
    if not names and response is None:
        return None
    chosen = tuple(_tool(declared[name], name) for name in names)
    size = sum(tool.parameters.size for tool in chosen if tool.parameters is not None)
    if size > MAX_NODES:
        raise GrammarError(f"tools: found {size} schemas within their parameters, wanted at most {MAX_NODES}")
    return Wanted(chosen, must_call, not parallel_tool_calls, response)


@dataclass(frozen=True)
class _Declared:
    function: Mapping[str, Any]
    where: str


def _declared(tools: Sequence[Mapping[str, Any]]) -> dict[str, _Declared]:
    if len(tools) > MAX_TOOLS:
        raise GrammarError(f"tools: found {len(tools)}, wanted at most {MAX_TOOLS}")
    declared: dict[str, _Declared] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
            raise GrammarError(f"{where}: found {_shown(tool)}, wanted a tool of type function")
        name = function.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise GrammarError(
                f"{where}.function.name: found {_shown(name)}, wanted 1 to {_MAX_NAME} characters"
            )
        if name in declared:
            raise GrammarError(f"{where}.function.name: found {name!r} a second time, wanted different names")
        declared[name] = _Declared(function, f"{where}.function.parameters")
    return declared


def _choice(choice: Any, declared: Mapping[str, object]) -> tuple[list[str], bool]:
    """The names that may be called, and whether one has to be."""
    if choice is None or choice == "auto":
        return list(declared), False
    if choice == "none":
        return [], False
    if choice == "required":
        names = list(declared)
    elif isinstance(choice, Mapping) and choice.get("type") == "function":
        names = [_chosen(choice, declared, "tool_choice")]
    elif isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools", choice), declared)
    else:
        raise GrammarError(
            f"tool_choice: found {_shown(choice)}, wanted auto, none, required, a function or allowed_tools"
        )
    if not names:
        raise GrammarError("tool_choice: found required without tools, wanted at least one tool")
    return names, True


def _allowed(allowed: Any, declared: Mapping[str, object]) -> tuple[list[str], bool]:
    where = "tool_choice.allowed_tools"
    mode = allowed.get("mode", "auto") if isinstance(allowed, Mapping) else None
    if mode not in ("auto", "required"):
        raise GrammarError(f"{where}.mode: found {_shown(mode)}, wanted auto or required")
    tools = allowed.get("tools")
    if not isinstance(tools, Sequence) or not tools:
        raise GrammarError(f"{where}.tools: found {_shown(tools)}, wanted a list of tools")
    names = [_chosen(tool, declared, f"{where}.tools[{index}]") for index, tool in enumerate(tools)]
    return list(dict.fromkeys(names)), mode == "required"


def _chosen(choice: Any, declared: Mapping[str, object], where: str) -> str:
    """The name in {"type": "function", "function": {"name": ...}}, or directly in it."""
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or name not in declared:
        raise GrammarError(f"{where}: found {_shown(name)}, wanted the name of a declared tool")
    return name


def _tool(declared: _Declared, name: str) -> Tool:
    parameters = declared.function.get("parameters")
    schema = None if parameters is None else normalise(parameters, declared.where)
    return Tool(name, schema, declared.where)


def _response(response_format: Mapping[str, Any] | None) -> Schema | None:
    if response_format is None:
        return None
    where = "response_format"
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return normalise(response_format.get("schema") or {"type": "object"}, f"{where}.schema")
    if kind != "json_schema":
        raise GrammarError(f"{where}.type: found {_shown(kind)}, wanted text, json_object or json_schema")
    inner = response_format.get("json_schema", response_format)
    if not isinstance(inner, Mapping) or inner.get("schema") is None:
        raise GrammarError(f"{where}.json_schema: found no schema, wanted one")
    place = f"{where}.json_schema.schema" if inner is not response_format else f"{where}.schema"
    return normalise(inner["schema"], place)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
