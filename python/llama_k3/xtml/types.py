"""What an answer consists of: whole, piece by piece, and while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Opened = Literal["think", "response"]
"""A channel that a generation prompt opens."""
Channel = Literal["reasoning", "content", "tools"]
"""What the text that comes next would be."""


@dataclass
class ToolCall:
    """One call. `index`: 1-based, as the model wrote it. `arguments`: a JSON object as text.

    Where the answer broke off inside the call, or the model wrote no object, it is what there is.
    """

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


@dataclass
class CallParts:
    """A call while it is read."""

    name: str
    index: int
    arguments: list[str] = field(default_factory=list)

    def whole(self) -> ToolCall:
        return ToolCall(self.name, self.index, "".join(self.arguments))


@dataclass
class AnswerParts:
    """The answer while it is read. Each method returns the delta of what it adds, or none."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[CallParts] = field(default_factory=list)

    def text(self, kind: Literal["reasoning", "content"], text: str) -> list[Delta]:
        if not text:
            return []
        (self.reasoning if kind == "reasoning" else self.content).append(text)
        return [Delta(kind, text)]

    def call(self, name: str, index: int | None = None) -> list[Delta]:
        """A new call; without an index it has the next one."""
        self.calls.append(CallParts(name, len(self.calls) + 1 if index is None else index))
        return [Delta("call", name, len(self.calls) - 1)]

    def arguments(self, text: str) -> list[Delta]:
        """More of the last call's arguments."""
        if not text:
            return []
        self.calls[-1].arguments.append(text)
        return [Delta("arguments", text, len(self.calls) - 1)]

    def whole(self) -> Message:
        calls = [call.whole() for call in self.calls]
        return Message("".join(self.reasoning), "".join(self.content), calls)
