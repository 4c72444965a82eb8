"""OpenAI chat messages, tools, tool choice and response format, checked and brought into one form.

Both chat formats render from this form. Every bad shape is an ArgumentError that names the field, what was
found and what was wanted. Fields that are null count as missing; unknown fields are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .errors import ArgumentError

Role = Literal["system", "user", "assistant", "tool"]
# `developer` is OpenAI's newer name of `system`; neither chat format knows it.
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@dataclass(frozen=True)
class Call:
    """A tool call of an earlier answer. `arguments`: JSON as text, or the object itself."""

    id: str | None
    name: str
    arguments: str | Mapping[str, Any] | None


@dataclass(frozen=True)
class ChatMessage:
    """One message. `texts`: its text parts.

    `reasoning` and `calls` are the assistant's; `tools` a system message's. Of a tool's result: `name` is the
    tool, `index` its place among the results of these calls (1-based), `answers` the place of its call
    (0-based) where it is known.
    """

    role: Role
    texts: tuple[str, ...] = ()
    name: str | None = None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    index: int = 0
    answers: int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


def wrong(where: str, found: object, wanted: str) -> ArgumentError:
    """The error of one field."""
    return ArgumentError(f"{where}: found {found}, wanted {wanted}")


def _kind(value: object) -> str:
    """A value's type in JSON's terms."""
    kinds = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    if isinstance(value, Mapping):
        return "an object"
    return kinds.get(type(value)) or ("an array" if isinstance(value, Sequence) else type(value).__name__)


def _text(fields: Mapping[str, Any], key: str, where: str) -> str | None:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value
    raise wrong(f"{where}.{key}", _kind(value), "a string")


def _array(value: object, where: str) -> Sequence[Any]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise wrong(where, _kind(value), "an array")
    return value


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(where, _kind(value), "an object")
    return value


def _name(fields: Mapping[str, Any], where: str) -> str:
    name = _text(fields, "name", where)
    if not name:
        raise wrong(f"{where}.name", "no name", "a function's name")
    return name


def dump_json(value: object, where: str, **options: Any) -> str:
    """JSON text of a value, not escaped beyond what JSON asks for. ArgumentError: it has none."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except (TypeError, ValueError) as error:
        raise wrong(where, f"a value that is not JSON ({error})", "JSON") from None
    except RecursionError:
        raise wrong(where, "values nested too deep", "flatter JSON") from None


def read_messages(messages: Iterable[Mapping[str, Any]]) -> list[ChatMessage]:
    """The messages; the results of one answer's calls in the order of the calls.

    A run of results is put into the order of the calls only where every id matches one.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        raise wrong("messages", _kind(messages), "an array")
    read: list[ChatMessage] = []
    run: list[tuple[Mapping[str, Any], ChatMessage, str]] = []
    calls: tuple[Call, ...] = ()
    results = 0
    for number, item in enumerate(messages):
        where = f"messages[{number}]"
        fields = _object(item, where)
        message = _message(fields, where)
        if message.role == "tool":
            run.append((fields, message, where))
            continue
        read += _results(run, calls, results)
        results += len(run)
        run = []
        if message.role == "assistant":
            calls, results = message.calls, 0
        read.append(message)
    return read + _results(run, calls, results)


def _message(fields: Mapping[str, Any], where: str) -> ChatMessage:
    role = fields.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        found = repr(role) if isinstance(role, str) else _kind(role)
        raise wrong(f"{where}.role", found, "system, developer, user, assistant or tool")
    name = _text(fields, "name", where) or None
    message = ChatMessage(_ROLES[role], _texts(fields, where), name)
    if message.role == "assistant":
        reasoning = _text(fields, "reasoning_content", where) or _text(fields, "reasoning", where) or ""
        return replace(message, reasoning=reasoning, calls=_calls(fields, where))
    if message.role == "system" and fields.get("tools"):
        if message.text:
            raise wrong(f"{where}.content", "text beside tools", "none: the message only declares tools")
        return replace(message, tools=read_tools(fields["tools"], f"{where}.tools"))
    return message


def _texts(fields: Mapping[str, Any], where: str) -> tuple[str, ...]:
    content = fields.get("content")
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,) if content else ()
    if not isinstance(content, Sequence):
        raise wrong(f"{where}.content", _kind(content), "a string or an array of text parts")
    texts = []
    for number, part in enumerate(content):
        place = f"{where}.content[{number}]"
        kind = _object(part, place).get("type")
        if kind != "text":
            raise wrong(f"{place}.type", repr(kind), "text")
        text = _text(part, "text", place)
        if text is None:
            raise wrong(f"{place}.text", "null", "a string")
        texts.append(text)
    return tuple(text for text in texts if text)


def _calls(fields: Mapping[str, Any], where: str) -> tuple[Call, ...]:
    calls = []
    for number, item in enumerate(_array(fields.get("tool_calls"), f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{number}]"
        call = _object(item, place)
        function: Mapping[str, Any] = call
        if call.get("function") is not None:
            place += ".function"
            function = _object(call["function"], place)
        arguments = function.get("arguments")
        if not (arguments is None or isinstance(arguments, (str, Mapping))):
            raise wrong(f"{place}.arguments", _kind(arguments), "a string with JSON, or an object")
        calls.append(Call(_id(call, "id"), _name(function, place), arguments))
    return tuple(calls)


def _id(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return None if value is None else str(value)


def _results(
    run: list[tuple[Mapping[str, Any], ChatMessage, str]], calls: tuple[Call, ...], before: int
) -> list[ChatMessage]:
    """Consecutive results, after `before` others of the same calls."""
    places: dict[str, int] = {}
    for place, call in enumerate(calls):
        if call.id is not None:
            places.setdefault(call.id, place)
    found = [places.get(_id(fields, "tool_call_id") or _id(fields, "id") or "") for fields, _, _ in run]
    order = list(range(len(run)))
    if all(place is not None for place in found):
        order.sort(key=lambda number: found[number] or 0)
    results = []
    for index, number in enumerate(order, before + 1):
        fields, message, where = run[number]
        answers = found[number]
        if answers is None and index <= len(calls):
            answers = index - 1
        known = found[number] is not None or message.name is None
        name = calls[answers].name if known and answers is not None else message.name
        if not name:
            raise wrong(where, "neither a name nor a call that it answers", "one of them")
        results.append(replace(message, name=name, index=index, answers=answers))
    return results


def read_tools(tools: Any, where: str = "tools") -> Sequence[Mapping[str, Any]]:
    """Tools as OpenAI's chat API declares them; returned as they are."""
    declared = _array(tools, where)
    for number, item in enumerate(declared):
        place = f"{where}[{number}]"
        tool = _object(item, place)
        if tool.get("type", "function") != "function":
            raise wrong(f"{place}.type", repr(tool["type"]), "function")
        _name(_object(tool.get("function"), f"{place}.function"), f"{place}.function")
    return declared


def sorted_json(value: object, where: str) -> str:
    """Compact JSON with the keys of every object sorted."""
    return dump_json(value, where, sort_keys=True, separators=(",", ":"))


ToolChoice = Literal["auto", "none", "required"]


def read_tool_choice(tool_choice: Any, names: Iterable[str]) -> ToolChoice:
    """auto, none or required; one named function counts as required. `names`: of the tools declared."""
    if tool_choice is None or tool_choice in ("auto", "none"):
        return tool_choice or "auto"
    known = list(names)
    if tool_choice == "required":
        if not known:
            raise wrong("tool_choice", "'required' without tools", "tools to choose from")
        return "required"
    if not isinstance(tool_choice, Mapping):
        raise wrong("tool_choice", repr(tool_choice), "auto, none, required or a function")
    if tool_choice.get("type") != "function":
        raise wrong("tool_choice.type", repr(tool_choice.get("type")), "function")
    name = _name(_object(tool_choice.get("function"), "tool_choice.function"), "tool_choice.function")
    if name not in known:
        raise wrong("tool_choice.function.name", repr(name), "the name of a tool")
    return "required"


def tool_names(tools: Iterable[Mapping[str, Any]], messages: Iterable[ChatMessage] = ()) -> list[str]:
    """Names of the tools declared, by the messages too."""
    declared = [*tools, *(tool for message in messages for tool in message.tools)]
    return [tool["function"]["name"] for tool in declared]


FormatKind = Literal["text", "json_object", "json_schema"]


def read_response_format(response_format: Any) -> tuple[FormatKind, Any]:
    """Kind of the response format, and the schema of a json_schema.

    The schema is at json_schema.schema (OpenAI) or at schema (llama.cpp).
    """
    if response_format is None:
        return "text", None
    fields = _object(response_format, "response_format")
    kind = fields.get("type")
    if kind in ("text", "json_object"):
        return kind, None
    if kind != "json_schema":
        raise wrong("response_format.type", repr(kind), "text, json_object or json_schema")
    schema, where = fields.get("schema"), "response_format.schema"
    if fields.get("json_schema") is not None:
        where = "response_format.json_schema.schema"
        schema = _object(fields["json_schema"], "response_format.json_schema").get("schema")
    if not isinstance(schema, (Mapping, bool)):
        raise wrong(where, _kind(schema), "a JSON schema")
    return "json_schema", schema
