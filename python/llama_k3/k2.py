"""Kimi-K2's chat format, which Kimi-Linear uses: messages to segments, answers to content and tool calls.

A message is <|im_ROLE|>NAME<|im_middle|>TEXT<|im_end|>. Calls of an answer stand behind its text between the
markers of a section, each with an id functions.NAME:NUMBER and JSON arguments. Facts: the chat templates of
Kimi-K2 (llama.cpp's models/templates/moonshotai-Kimi-K2*.jinja). The id is the only carrier of the function's
name, so ids of any other form, which clients make up, are replaced by the proper ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .messages import Call, ChatMessage, dump_json, sorted_json
from .xtml.reader import SegmentReader
from .xtml.segments import Segment, control, text_segments
from .xtml.types import Channel, Delta

USER, ASSISTANT, SYSTEM = "<|im_user|>", "<|im_assistant|>", "<|im_system|>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
MARKERS = (USER, ASSISTANT, MIDDLE, END)
"""Without these a vocabulary cannot carry the format."""
SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, ARGUMENTS_BEGIN, CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_CALL_MARKERS = (SECTION_BEGIN, SECTION_END, CALL_BEGIN, ARGUMENTS_BEGIN, CALL_END)

_ROLE_MARKER = {"user": USER, "assistant": ASSISTANT}
_ID = re.compile(r"(?:functions\.)?(.*?)(?::[0-9]+)?", re.DOTALL)


def call_id(name: str, number: int) -> str:
    return f"functions.{name}:{number}"


def arguments_text(call: Call) -> str:
    """The arguments as JSON text, with the bytes of the client where it is one."""
    if isinstance(call.arguments, str):
        return call.arguments
    return dump_json(call.arguments or {}, f"arguments of {call.name}")


def with_ids(messages: Sequence[ChatMessage]) -> Iterator[tuple[ChatMessage, list[str]]]:
    """Each message with the ids of its calls or, for a result, the id of the call that it answers.

    Calls count from 0 through the whole dialogue.
    """
    count = 0
    ids: list[str] = []
    for message in messages:
        if message.role == "assistant":
            ids = []
            for number, call in enumerate(message.calls, count):
                proper = call.id is not None and re.fullmatch(
                    rf"functions\.{re.escape(call.name)}:[0-9]+", call.id
                )
                ids.append(call.id if proper and call.id is not None else call_id(call.name, number))
            count += len(ids)
            yield message, ids
        elif message.role == "tool":
            known = message.answers is not None and message.answers < len(ids)
            answered = ids[message.answers or 0] if known else call_id(message.name or "", message.index - 1)
            yield message, [answered]
        else:
            yield message, []


def render(
    messages: Sequence[ChatMessage],
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
) -> list[Segment]:
    """The messages as segments, without a system message of our own. Reasoning has no place in the format."""
    segments = _declaration(tools) if tools else []
    for message, ids in with_ids(messages):
        if message.tools:
            segments += _declaration(message.tools)
            continue
        name = message.name or message.role
        segments += _turn(_ROLE_MARKER.get(message.role, SYSTEM), name)
        if message.role == "tool":
            segments += text_segments(f"## Return of {ids[0]}\n{message.text}")
        else:
            segments += text_segments(message.text)
        if message.calls:
            segments.append(control(SECTION_BEGIN))
            for call, name in zip(message.calls, ids, strict=True):
                segments += [control(CALL_BEGIN), Segment("text", name), control(ARGUMENTS_BEGIN)]
                segments += [*text_segments(arguments_text(call)), control(CALL_END)]
            segments.append(control(SECTION_END))
        segments.append(control(END))
    return segments + generation_prompt() if add_generation_prompt else segments


def generation_prompt() -> list[Segment]:
    """Opens the assistant's message."""
    return _turn(ASSISTANT, "assistant")


def _turn(marker: str, name: str) -> list[Segment]:
    return [control(marker), Segment("text", name), control(MIDDLE)]


def _declaration(tools: Sequence[Mapping[str, Any]]) -> list[Segment]:
    declared = Segment("text", sorted_json(tools, "tools"))
    return [*_turn(SYSTEM, "tool_declare"), declared, control(END)]


class StreamParser(SegmentReader):
    """Reads one answer. It never fails and does not depend on how the answer is cut.

    Only control tokens are markup. A call ends the call before it; one without arguments has {}. Text of a
    section outside of its calls is dropped; arguments without a call are content. Other control tokens are
    dropped, nothing behind <|im_end|> is read. A call that is broken off stays as it is.
    """

    def __init__(self) -> None:
        super().__init__((*_CALL_MARKERS, END))
        self._section = False
        # "id" or "arguments" of the call that is open.
        self._part = ""
        self._id: list[str] = []
        self._blank = True

    @property
    def channel(self) -> Channel:
        return "tools" if self._section or self._part else "content"

    def close_thinking(self) -> list[Segment]:
        """Nothing: there is no thinking."""
        return []

    def _text(self, text: str) -> list[Delta]:
        if self._part == "id":
            self._id.append(text)
            return []
        if self._part == "arguments":
            self._blank = self._blank and not text.strip()
            return self._answer.arguments(text)
        return [] if self._section else self._answer.text("content", text)

    def _control(self, marker: str) -> list[Delta]:
        if marker == ARGUMENTS_BEGIN:
            return self._begin_arguments() if self._part == "id" else []
        if marker not in (*_CALL_MARKERS, END):
            return []
        deltas = self._end_call()
        if marker == CALL_BEGIN:
            self._part, self._blank = "id", True
        elif marker in (SECTION_BEGIN, SECTION_END):
            self._section = marker == SECTION_BEGIN
        self._ended = marker == END
        return deltas

    def _begin_arguments(self) -> list[Delta]:
        """The id is whole. What follows a brace in it are arguments whose marker is missing."""
        header = "".join(self._id)
        self._id.clear()
        self._part = "arguments"
        brace = header.find("{")
        name, rest = (header, "") if brace < 0 else (header[:brace], header[brace:])
        match = _ID.fullmatch(name.strip())
        return self._answer.call(match[1] if match else name) + (self._text(rest) if rest else [])

    def _end_call(self) -> list[Delta]:
        deltas = self._begin_arguments() if self._part == "id" else []
        if self._part and self._blank:
            deltas += self._answer.arguments("{}")
        self._part = ""
        return deltas
