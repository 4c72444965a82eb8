"""Dialogues and their form in K3's XTML: segments of text or control token, with the training mask."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from .bpe import Tokenizer
from .config import END_OF_MESSAGE, SPECIAL_TOKENS

_OPEN, _CLOSE, _SEP = (SPECIAL_TOKENS[name] for name in ("<|open|>", "<|close|>", "<|sep|>"))
_EFFORT_TEXT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
    "channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_TOOLS_TEXT = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
OFF = "off"
"""Effort of a dialogue without the think channel."""

Segment = tuple["str | int", bool]
"""Text or one control token, and whether the assistant has to produce it."""


@dataclass(frozen=True)
class Call:
    """One tool call; the arguments are strings or JSON values."""

    tool: str
    arguments: dict[str, object]


@dataclass(frozen=True)
class Message:
    """One message. `think` and `calls` are the assistant's, `tool` and `index` (1-based) a tool result's."""

    role: str
    content: str
    think: str = ""
    calls: tuple[Call, ...] = ()
    tool: str = ""
    index: int = 1


@dataclass
class Dialogue:
    """Messages with the tools declared and the thinking effort (`off`, `low`, `high` or `max`)."""

    effort: str
    tools: list[dict[str, object]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


def _escape(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _open(name: str, **attributes: str) -> list[str | int]:
    text = name + "".join(f' {key}="{_escape(value)}"' for key, value in attributes.items())
    return [_OPEN, text, _SEP]


def _close(name: str) -> list[str | int]:
    return [_CLOSE, name, _SEP]


def _whole_message(content: str, **attributes: str) -> list[str | int]:
    return [*_open("message", **attributes), content, *_close("message"), END_OF_MESSAGE]


def _call_segments(call: Call, index: int) -> list[str | int]:
    parts = _open("call", tool=call.tool, index=str(index))
    for key, value in call.arguments.items():
        kind = "string" if isinstance(value, str) else "number"
        text = value if isinstance(value, str) else json.dumps(value)
        parts += [*_open("argument", key=key, type=kind), text, *_close("argument")]
    return parts + _close("call")


def _assistant_segments(message: Message, thinking: bool) -> list[Segment]:
    """The prompt part (message and first channel opened) is not a target, the rest is."""
    channel = "think" if thinking else "response"
    prompt = _open("message", role="assistant") + _open(channel)
    body: list[str | int] = []
    if thinking:
        body += [message.think, *_close("think"), *_open("response")]
    body += [message.content, *_close("response")]
    if message.calls:
        body += _open("tools")
        for index, call in enumerate(message.calls, 1):
            body += _call_segments(call, index)
        body += _close("tools")
    body += [*_close("message"), END_OF_MESSAGE]
    return [(part, False) for part in prompt] + [(part, True) for part in body]


def render(dialogue: Dialogue) -> list[Segment]:
    """The dialogue as segments, in K3's order: tools, thinking effort, messages."""
    thinking = dialogue.effort != OFF
    head: list[str | int] = []
    if dialogue.tools:
        declared = json.dumps(dialogue.tools, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        head += _whole_message(_TOOLS_TEXT.format(declared), role="system", type="tool-declare")
    if thinking:
        effort = _EFFORT_TEXT.format(dialogue.effort)
        head += _whole_message(effort, role="system", type="thinking-effort")
    segments: list[Segment] = [(part, False) for part in head]
    for message in dialogue.messages:
        if message.role == "assistant":
            segments += _assistant_segments(message, thinking)
        elif message.role == "tool":
            whole = _whole_message(message.content, role="tool", tool=message.tool, index=str(message.index))
            segments += [(part, False) for part in whole]
        else:
            segments += [(part, False) for part in _whole_message(message.content, role=message.role)]
    return segments


def encode(dialogue: Dialogue, tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Token ids and, for each, whether it is a target."""
    ids: list[int] = []
    targets: list[bool] = []
    for part, target in render(dialogue):
        tokens = [part] if isinstance(part, int) else tokenizer.encode(part)
        ids += tokens
        targets += [target] * len(tokens)
    return ids, targets


def last_answer_start(targets: list[bool]) -> int:
    """Index of the first token of the last assistant turn's target, which ends the sequence."""
    return max(i for i, target in enumerate(targets) if not target) + 1
