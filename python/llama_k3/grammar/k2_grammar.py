"""Answers in Kimi-K2's format, which Kimi-Linear uses: content, then calls between control tokens."""

from __future__ import annotations

import re
from collections.abc import Collection

from ..k2 import ARGUMENTS_BEGIN, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END
from .errors import GrammarError
from .lark import Lark
from .nodes import Schema, kinds
from .request import Tool, Wanted

_MARKERS = (SECTION_BEGIN, CALL_BEGIN, ARGUMENTS_BEGIN, CALL_END, SECTION_END)
_NAME = re.compile("[A-Za-z0-9_.-]+")


def write(lark: Lark, wanted: Wanted, control_tokens: Collection[str]) -> str:
    """The grammar's text. GrammarError: tools are wanted that the vocabulary has no tokens for."""
    contents = []
    if wanted.response is None:
        contents.append(lark.any_tokens())
    elif not wanted.must_call:
        contents.append(lark.json(wanted.response, wanted.response.root, "response_format"))
    if not wanted.tools:
        return lark.whole(contents[0])
    missing = [marker for marker in _MARKERS if marker not in control_tokens]
    if missing:
        raise GrammarError(f"tools: found a model without the control token {missing[0]}, wanted none")
    calls = _calls(lark, wanted)
    if wanted.response is not None:
        return lark.whole(" | ".join([*contents, calls]))
    return lark.whole(f"{contents[0]} {calls}" if wanted.must_call else f"{contents[0]} ({calls})?")


def _calls(lark: Lark, wanted: Wanted) -> str:
    call = " | ".join(_call(lark, tool) for tool in wanted.tools)
    return lark.rule(f"{SECTION_BEGIN} ({call}){'' if wanted.one_call else '+'} {SECTION_END}")


def _call(lark: Lark, tool: Tool) -> str:
    if not _NAME.fullmatch(tool.name):
        place = tool.where.removesuffix("parameters") + "name"
        raise GrammarError(f"{place}: found {tool.name!r}, wanted letters, digits, _, . and -")
    schema = tool.parameters or Schema({"type": "object", "additionalProperties": False})
    if "object" not in kinds(schema, schema.root):
        raise GrammarError(f"{tool.where}: found a schema of no object, wanted type object")
    whole = schema.root
    arguments = {"allOf": [{"type": "object"}, whole]} if whole is not True else {"type": "object"}
    value = lark.json(schema, arguments, tool.where)
    header = lark.text(f"functions.{tool.name}:")
    return lark.rule(f"{CALL_BEGIN} {header} /[0-9]{{1,9}}/ {ARGUMENTS_BEGIN} {value} {CALL_END}")
