"""XTML, Kimi-K3's chat format: messages to segments, the model's output to reasoning, content and calls.

A tag is <|open|>NAME key="value"<|sep|> ... <|close|>NAME<|sep|>. The four markers are single control tokens,
all else is plain text. A message is a tag `message` and <|end_of_msg|>; the assistant's holds the channels
`think`, `response` and `tools`. Segments keep the two kinds apart, so that no text can become a control
token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import ArgumentError
from .tokenizer import Tokenizer

OPEN, CLOSE, SEP, END_OF_MESSAGE = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
MARKERS = (OPEN, CLOSE, SEP, END_OF_MESSAGE)
EFFORTS = ("low", "high", "max")

# The wording is the model's own: it names `medium`, which is no value.
_EFFORT_TEXT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
    "channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
    "`thinking_effort={}`."
)
_TOOLS_TEXT = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_CHANNELS = ("think", "response", "tools")
_ATTRIBUTE = re.compile(r'([^\s="]+)="([^"]*)"')
_INDEX = re.compile("[0-9]{1,9}")
_MARKER = re.compile("|".join(re.escape(marker) for marker in MARKERS))


@dataclass(frozen=True)
class Segment:
    """A control token by its name, or plain text."""

    kind: Literal["control", "text"]
    text: str


@dataclass
class ToolCall:
    """One call. `arguments`: a JSON object as text (or whatever the model wrote in its place)."""

    name: str
    index: int
    arguments: str


@dataclass
class Message:
    """What the assistant said."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class Delta:
    """A piece of output: text of the reasoning or the content, the name of a new call, JSON of its arguments.

    `call`: position of the call in Message.tool_calls.
    """

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    call: int | None = None


def _control(marker: str) -> Segment:
    return Segment("control", marker)


def _open(name: str, /, **attributes: object) -> list[Segment]:
    header = name
    for key, value in attributes.items():
        escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
        header += f' {key}="{escaped}"'
    return [_control(OPEN), Segment("text", header), _control(SEP)]


def _close(name: str) -> list[Segment]:
    return [_control(CLOSE), Segment("text", name), _control(SEP)]


def _text(text: str) -> list[Segment]:
    return [Segment("text", text)] if text else []


def _whole_message(content: str, /, **attributes: object) -> list[Segment]:
    return [*_open("message", **attributes), *_text(content), *_close("message"), _control(END_OF_MESSAGE)]


def render(
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = True,
    effort: str | None = None,
    add_generation_prompt: bool = True,
) -> list[Segment]:
    """Messages of the OpenAI form (roles system, user, assistant, tool) as segments.

    `tools`: OpenAI tool declarations. `effort`: low, high or max (the default). An assistant message carries
    `reasoning_content` and `tool_calls`; a tool message its `name`, or the `tool_call_id` of a call before
    it. ArgumentError names a message that cannot be rendered.
    """
    segments = preamble(tools, thinking, effort)
    calls: list[Mapping[str, Any]] = []
    results = 0
    for number, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            calls, results = list(message.get("tool_calls") or []), 0
            segments += _assistant_message(message, calls, thinking, number)
        elif role == "tool":
            results += 1
            segments += _tool_message(message, calls, results, number)
        elif role in ("system", "user"):
            named = {"name": message["name"]} if message.get("name") else {}
            segments += _whole_message(_content(message, number), role=role, **named)
        else:
            raise ArgumentError(
                f"messages[{number}].role: found {role!r}, wanted system, user, assistant or tool"
            )
    return segments + generation_prompt(thinking) if add_generation_prompt else segments


def preamble(
    tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = True, effort: str | None = None
) -> list[Segment]:
    """The system messages before the first message: tools, then thinking effort."""
    segments: list[Segment] = []
    if tools:
        declared = json.dumps(list(tools), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        segments += _whole_message(_TOOLS_TEXT.format(declared), role="system", type="tool-declare")
    if effort is not None and effort not in EFFORTS:
        raise ArgumentError(f"effort: found {effort!r}, wanted one of {', '.join(EFFORTS)}")
    if thinking:
        body = _EFFORT_TEXT.format(effort or "max")
        segments += _whole_message(body, role="system", type="thinking-effort")
    return segments


def user_message(text: str) -> list[Segment]:
    """A user's message."""
    return _whole_message(text, role="user")


def generation_prompt(thinking: bool = True) -> list[Segment]:
    """Opens the assistant's message and its first channel."""
    return _open("message", role="assistant") + _open("think" if thinking else "response")


def _content(message: Mapping[str, Any], number: int) -> str:
    """The text of a message: a string, or parts of type text."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ArgumentError(f"messages[{number}].content: found {type(content).__name__}, wanted text")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ArgumentError(f"messages[{number}].content: found a part of type {kind!r}, wanted text")
        texts.append(part["text"])
    return "".join(texts)


def _assistant_message(
    message: Mapping[str, Any], calls: list[Mapping[str, Any]], thinking: bool, number: int
) -> list[Segment]:
    segments = _open("message", role="assistant")
    if thinking:
        segments += _open("think") + _text(message.get("reasoning_content") or "") + _close("think")
    segments += _open("response") + _text(_content(message, number)) + _close("response")
    if calls:
        segments += _open("tools")
        for index, call in enumerate(calls, 1):
            segments += _call(call, index, number)
        segments += _close("tools")
    return [*segments, *_close("message"), _control(END_OF_MESSAGE)]


def _call(call: Mapping[str, Any], index: int, number: int) -> list[Segment]:
    """One tool call: an argument tag for each key, or the raw text where the arguments are no JSON object."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if not function.get("name"):
        raise ArgumentError(f"messages[{number}].tool_calls[{index - 1}]: found no function name, wanted one")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    segments = _open("call", tool=function["name"], index=index)
    if isinstance(arguments, Mapping):
        for key, value in arguments.items():
            segments += _open("argument", key=key, type=_json_type(value))
            segments += _text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            segments += _close("argument")
    elif arguments is not None:
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        segments += _open("json", type="object") + _text(raw) + _close("json")
    return segments + _close("call")


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "object" if isinstance(value, Mapping) else "array"


def _tool_message(
    message: Mapping[str, Any], calls: list[Mapping[str, Any]], result: int, number: int
) -> list[Segment]:
    """A tool's result: bound to its call by tool_call_id where that is known, else by order, 1-based."""
    index = result
    for position, call in enumerate(calls, 1):
        if message.get("tool_call_id") is not None and call.get("id") == message["tool_call_id"]:
            index = position
    name = message.get("name")
    if name is None and index <= len(calls):
        call = calls[index - 1]
        name = call.get("function", call).get("name")
    if name is None:
        raise ArgumentError(f"messages[{number}]: found neither a name nor a call that it answers")
    return _whole_message(_content(message, number), role="tool", tool=name, index=index)


def encode(segments: Iterable[Segment], tokenizer: Tokenizer) -> list[int]:
    """Token ids. Text between two control tokens is encoded in one piece and never becomes one."""
    ids: list[int] = []
    text = ""
    for segment in segments:
        if segment.kind == "text":
            text += segment.text
            continue
        ids += [*tokenizer.encode(text), tokenizer.special_id(segment.text)]
        text = ""
    return ids + tokenizer.encode(text)


class StreamParser:
    """Reads the assistant's output piece by piece. Never raises on it, never shows a marker.

    A channel that opens closes the one before it; a closer without its opener is dropped; text outside every
    channel counts as content.
    """

    def __init__(self, opened: Literal["think", "response"] | None = None) -> None:
        """`opened`: the channel that the generation prompt opened."""
        self._message = Message()
        self._tags: list[str] = ["message", opened] if opened else ["message"]
        self._header: str | None = None
        self._closing = False
        self._pending = ""
        self._call: int | None = None
        self._argument: tuple[str, str, list[str]] | None = None

    def feed(self, piece: Segment | str) -> list[Delta]:
        """The deltas that a piece brings. In a str, markers count as control tokens, also when cut in two."""
        if isinstance(piece, Segment):
            return self._control(piece.text) if piece.kind == "control" else self._plain(piece.text)
        text = self._pending + piece
        self._pending = ""
        deltas: list[Delta] = []
        start = 0
        for marker in _MARKER.finditer(text):
            deltas += self._plain(text[start : marker.start()]) + self._control(marker.group())
            start = marker.end()
        rest = text[start:]
        held = max((n for m in MARKERS for n in range(1, len(m)) if rest.endswith(m[:n])), default=0)
        self._pending = rest[len(rest) - held :]
        return deltas + self._plain(rest[: len(rest) - held])

    def close(self) -> Message:
        """The whole message; what was cut off in the middle is kept as far as it came."""
        self._plain(self._pending)
        self._pending = ""
        self._end_tags(0)
        return self._message

    def closing(self) -> list[Segment]:
        """What ends the message in proper form from where it stands: for an answer that was stopped."""
        segments: list[Segment] = [] if self._header is None else [_control(SEP)]
        for tag in reversed(self._tags):
            segments += _close(tag)
        return [*segments, _control(END_OF_MESSAGE)]

    def _control(self, marker: str) -> list[Delta]:
        if marker in (OPEN, CLOSE):
            self._header, self._closing = "", marker == CLOSE
            return []
        if marker == SEP and self._header is not None:
            header, self._header = self._header.strip(), None
            name = header.split(None, 1)[0] if header else ""
            return self._close_tag(name) if self._closing else self._open_tag(name, header)
        return self._end_tags(0) if marker == END_OF_MESSAGE else []

    def _plain(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._header is not None:
            self._header += text
            return []
        if self._argument is not None:
            self._argument[2].append(text)
            return []
        if "tools" in self._tags:
            return []
        if "think" in self._tags:
            self._message.reasoning += text
            return [Delta("reasoning", text)]
        self._message.content += text
        return [Delta("content", text)]

    def _open_tag(self, name: str, header: str) -> list[Delta]:
        deltas: list[Delta] = []
        if name in _CHANNELS or name == "message":
            deltas = self._end_tags(1 if "message" in self._tags[:1] and name != "message" else 0)
        elif name == "call":
            deltas = self._end_tags(self._depth("call"))
        elif name in ("argument", "json"):
            deltas = self._end_tags(min(self._depth("argument"), self._depth("json")))
        self._tags.append(name)
        attributes = _attributes(header)
        if name == "call":
            deltas.append(self._begin_call(attributes.get("tool", ""), attributes.get("index", "")))
        elif name == "argument" and self._call is not None:
            self._argument = (attributes.get("key", ""), attributes.get("type", "string"), [])
        elif name == "json" and self._call is not None:
            self._argument = ("", "raw", [])
        return deltas

    def _begin_call(self, tool: str, index: str) -> Delta:
        self._call = len(self._message.tool_calls)
        number = int(index) if _INDEX.fullmatch(index) else self._call + 1
        self._message.tool_calls.append(ToolCall(tool, number, ""))
        return Delta("call", tool, self._call)

    def _depth(self, name: str) -> int:
        """Tags outside the innermost one of this name; all tags where there is none."""
        return len(self._tags) - 1 - self._tags[::-1].index(name) if name in self._tags else len(self._tags)

    def _close_tag(self, name: str) -> list[Delta]:
        return self._end_tags(self._depth(name))

    def _end_tags(self, depth: int) -> list[Delta]:
        """Close the tags from `depth` on, innermost first."""
        deltas: list[Delta] = []
        while len(self._tags) > depth:
            name = self._tags.pop()
            if name in ("argument", "json"):
                deltas += self._end_argument()
            elif name == "call":
                deltas += self._end_call()
        return deltas

    def _end_argument(self) -> list[Delta]:
        if self._argument is None or self._call is None:
            return []
        (key, kind, parts), self._argument = self._argument, None
        value = "".join(parts)
        call = self._message.tool_calls[self._call]
        if kind == "raw":
            return self._add_arguments(value)
        if kind == "string" or not _is_json(value):
            value = json.dumps(value, ensure_ascii=False)
        before = ", " if call.arguments else "{"
        return self._add_arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: {value}")

    def _end_call(self) -> list[Delta]:
        if self._call is None:
            return []
        arguments = self._message.tool_calls[self._call].arguments
        deltas = []
        if not arguments:
            deltas = self._add_arguments("{}")
        elif arguments.startswith("{") and not _is_json(arguments):
            deltas = self._add_arguments("}")
        self._call = None
        return deltas

    def _add_arguments(self, text: str) -> list[Delta]:
        assert self._call is not None
        self._message.tool_calls[self._call].arguments += text
        return [Delta("arguments", text, self._call)]


def _attributes(header: str) -> dict[str, str]:
    """The attributes of a tag's header, unescaped."""
    pairs = _ATTRIBUTE.findall(header)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in pairs}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def parse(text: str, opened: Literal["think", "response"] | None = None) -> Message:
    """The message in a whole output; see StreamParser."""
    parser = StreamParser(opened)
    parser.feed(text)
    return parser.close()
