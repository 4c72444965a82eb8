"""Kimi-K3's answers as a grammar: the rest of the opened channel, then what may follow, to the end."""

from __future__ import annotations

from typing import Literal

from .arguments import Arguments, escaped
from .lark import Lark
from .request import Tool, Wanted

_CLOSE_THINK = '<|close|> "think" <|sep|>'
_OPEN_RESPONSE = '<|open|> "response" <|sep|>'
_CLOSE_RESPONSE = '<|close|> "response" <|sep|>'
_CLOSE_MESSAGE = '<|close|> "message" <|sep|>'
_COUNTED_CALLS = 16
"""Up to this one, a call's index has to be its position; later ones have any."""


def write(lark: Lark, wanted: Wanted, opened: Literal["think", "response"]) -> str:
    """The grammar's text. The end of the message itself, <|end_of_msg|>, is the end of the grammar."""
    tools = _tools(lark, wanted) if wanted.tools else None
    bodies = [_OPEN_RESPONSE + " " + body for body in _responses(lark, wanted, tools)]
    if opened == "response":
        start = _any_of(_responses(lark, wanted, tools))
    else:
        without_response = [tools] if tools is not None else []
        start = f"{lark.any_tokens()} {_CLOSE_THINK} {_any_of([*bodies, *without_response])}"
    return lark.whole(f"{start} {_CLOSE_MESSAGE}")


def _any_of(alternatives: list[str]) -> str:
    return f"({' | '.join(alternatives)})"


def _responses(lark: Lark, wanted: Wanted, tools: str | None) -> list[str]:
    """What may follow the opened response channel. With a response format, calls come without content."""
    if wanted.response is None:
        any_text = f"{lark.any_tokens()} {_CLOSE_RESPONSE}"
        if tools is None:
            return [any_text]
        return [f"{any_text} {tools}" if wanted.must_call else f"{any_text} ({tools})?"]
    responses = []
    if not wanted.must_call:
        schema = wanted.response
        responses.append(f"{lark.json(schema, schema.root, 'response_format')} {_CLOSE_RESPONSE}")
    if tools is not None:
        responses.append(f"{_CLOSE_RESPONSE} {tools}")
    return responses


def _tools(lark: Lark, wanted: Wanted) -> str:
    """The tools channel. The number of a rule is the index of the next call."""
    names = [_tool(lark, tool, f"tool_{number}") for number, tool in enumerate(wanted.tools)]
    counted = [f"/{index}/ %if eq(_, {index})" for index in range(1, _COUNTED_CALLS + 1)]
    lark.numbered("index", [*counted, f"/[1-9][0-9]{{0,8}}/ %if gt(_, {_COUNTED_CALLS})"])
    lark.numbered("call", [f"{name}::_" for name in names])
    lark.numbered("calls", ["call::_", "call::_ calls::incr(_)"])
    calls = "call::1" if wanted.one_call else "calls::1"
    return lark.rule(f'<|open|> "tools" <|sep|> {calls} <|close|> "tools" <|sep|>')


def _tool(lark: Lark, tool: Tool, name: str) -> str:
    """The numbered rule of a call of this tool."""
    header = (
        f'<|open|> "call tool=\\"" {lark.text(escaped(tool.name))} "\\" index=\\"" index::_ "\\"" <|sep|>'
    )
    arguments = Arguments(lark, tool, name).rule()
    lark.numbered(name, [f'{header} {arguments} <|close|> "call" <|sep|>'])
    return name
