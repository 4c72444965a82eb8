"""What an answer consists of, whole and piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


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
