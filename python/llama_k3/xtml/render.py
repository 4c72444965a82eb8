"""OpenAI messages as XTML segments. The wording of the system messages is the model's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError
from ..messages import (
    Call,
    ChatMessage,
    dump_json,
    read_messages,
    read_response_format,
    read_tool_choice,
    read_tools,
    sorted_json,
    tool_names,
)
from .arguments import Argument, split_object
from .segments import END_OF_MESSAGE, Segment, close_tag, control, open_tag, text_segments

EFFORTS = ("low", "high", "max")

# encoding_k3.py build_chat_segments and Kimi-K3.jinja. The text names `medium`, which the encoder refuses.
_EFFORT_TEXT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
    "channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
    "`thinking_effort={}`."
)
# encoding_k3.py _render_tool_declare, Kimi-K3.jinja render_tool_declare; the second one with dynamic=True.
_TOOLS_TEXT = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_NEW_TOOLS_TEXT = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access "
    "to all existing and extended tools.\nHere are the specs for the extended tools.\n\n```json\n{}\n```"
)
# The end of encoding_k3.py build_chat_segments and of Kimi-K3.jinja; `auto` and `text` have no message.
_TOOL_CHOICE_TEXT = "The system is invoked with `tool_choice={}`.\n"
_CHOICES = {
    "required": "You MUST call tools in the next message.",
    "none": "You MUST NOT call any tools in the next message.",
}
_FORMAT_TEXT = (
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown "
    "code blocks (```json) or any additional formatting."
)
_SCHEMA_TEXT = "\nThe JSON data must match the following schema:\n```json\n{}\n```"


def render(
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool = True,
    effort: str | None = None,
    tool_choice: Any = None,
    response_format: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> list[Segment]:
    """Messages of OpenAI's chat form (roles system, developer, user, assistant, tool) as segments.

    `developer` is rendered as system. An assistant message carries `reasoning_content` (or `reasoning`) and
    `tool_calls`; without thinking its reasoning is left out. A tool message is bound to its call by
    `tool_call_id`, else by order, or carries its `name`. A system message with `tools` declares further
    tools. `effort`: low, high or max (the default). `tool_choice` of one function is rendered as required,
    for which the format has a word. ArgumentError names the field that cannot be rendered.
    """
    declared = read_tools(tools)
    read = read_messages(messages)
    choice = read_tool_choice(tool_choice, tool_names(declared, read))
    segments = preamble(declared, thinking, effort)
    for message in read:
        segments += _message(message, thinking)
    if choice in _CHOICES:
        segments += _system(_TOOL_CHOICE_TEXT.format(choice) + _CHOICES[choice], "tool-choice")
    kind, schema = read_response_format(response_format)
    if kind != "text":
        body = _FORMAT_TEXT.format(kind)
        if kind == "json_schema":
            body += _SCHEMA_TEXT.format(sorted_json(schema, "response_format"))
        segments += _system(body, "response-format")
    return segments + generation_prompt(thinking) if add_generation_prompt else segments


def preamble(
    tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = True, effort: str | None = None
) -> list[Segment]:
    """The system messages before the first message: tools, then thinking effort."""
    segments = _tools(_TOOLS_TEXT, tools) if tools else []
    if effort is not None and effort not in EFFORTS:
        raise ArgumentError(f"effort: found {effort!r}, wanted one of {', '.join(EFFORTS)}")
    if thinking:
        segments += _system(_EFFORT_TEXT.format(effort or "max"), "thinking-effort")
    return segments


def user_message(text: str) -> list[Segment]:
    """A user's message."""
    return _whole_message([text], role="user")


def generation_prompt(thinking: bool = True) -> list[Segment]:
    """Opens the assistant's message and its first channel."""
    return open_tag("message", role="assistant") + open_tag("think" if thinking else "response")


def _whole_message(texts: Sequence[str], /, **attributes: object) -> list[Segment]:
    return [*open_tag("message", **attributes), *text_segments(*texts), *_message_end()]


def _message_end() -> list[Segment]:
    return [*close_tag("message"), control(END_OF_MESSAGE)]


def _system(body: str, kind: str) -> list[Segment]:
    return _whole_message([body], role="system", type=kind)


def _tools(text: str, tools: Sequence[Mapping[str, Any]]) -> list[Segment]:
    return _system(text.format(sorted_json(tools, "tools")), "tool-declare")


def _message(message: ChatMessage, thinking: bool) -> list[Segment]:
    if message.role == "tool":
        return _whole_message(message.texts, role="tool", tool=message.name, index=message.index)
    if message.tools:
        return _tools(_NEW_TOOLS_TEXT, message.tools)
    named = {"name": message.name} if message.name else {}
    if message.role == "assistant":
        return [
            *open_tag("message", role="assistant", **named),
            *_channels(message, thinking),
            *_message_end(),
        ]
    return _whole_message(message.texts, role=message.role, **named)


def _channels(message: ChatMessage, thinking: bool) -> list[Segment]:
    """The reasoning goes in as it is, blank or not: it is what the model has written."""
    segments: list[Segment] = []
    if thinking:
        segments += [*open_tag("think"), *text_segments(message.reasoning), *close_tag("think")]
    segments += [*open_tag("response"), *text_segments(*message.texts), *close_tag("response")]
    if message.calls:
        calls = [_call(call, index) for index, call in enumerate(message.calls, 1)]
        segments += [*open_tag("tools"), *(part for call in calls for part in call), *close_tag("tools")]
    return segments


def _call(call: Call, index: int) -> list[Segment]:
    """One tool call: a tag for each argument, or one raw text where the arguments are no JSON object."""
    segments = open_tag("call", tool=call.name, index=index)
    arguments = _arguments(call)
    if arguments is None:
        segments += [
            *open_tag("json", type="object"),
            Segment("text", str(call.arguments)),
            *close_tag("json"),
        ]
    for argument in arguments or []:
        segments += open_tag("argument", key=argument.key, type=argument.kind)
        segments += [*text_segments(argument.value), *close_tag("argument")]
    return segments + close_tag("call")


def _arguments(call: Call) -> list[Argument] | None:
    """None: they are a text that is no JSON object."""
    if call.arguments is None:
        return []
    if isinstance(call.arguments, str):
        return split_object(call.arguments) if call.arguments.strip() else []
    text = dump_json(call.arguments, f"arguments of {call.name}")
    return split_object(text)
