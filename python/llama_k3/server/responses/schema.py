"""The forms of requests to /v1/responses. Unknown fields are ignored; known ones that cannot be done here
are refused in convert.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..limits import INT32_MAX, MAX_MESSAGES, MAX_TOOLS
from ..schemas.nullable import NullableForm

MAX_NAME = 64
"""Characters of a function's name, as at OpenAI."""
MAX_METADATA = 16


class TextPart(NullableForm):
    """Text of the user (input_text), the assistant (output_text), or either (text)."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(NullableForm):
    type: Literal["refusal"]
    refusal: str


def _as_parts(content: Any) -> Any:
    """A string is short for one part of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Parts = Annotated[list[Part], BeforeValidator(_as_parts, json_schema_input_type=str | list[Part])]


class MessageItem(NullableForm):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class FunctionCallItem(NullableForm):
    type: Literal["function_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class FunctionOutputItem(NullableForm):
    type: Literal["function_call_output"]
    call_id: str
    output: Parts


class ReasoningText(NullableForm):
    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(NullableForm):
    """`encrypted_content`: see opaque.py; another server's is accepted and not used."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


Item = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem, Field(discriminator="type")
]


def _as_items(value: Any) -> Any:
    """A string is a user's message; an item without a type is a message."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if isinstance(value, list):
        return [
            {**i, "type": "message"} if isinstance(i, dict) and i.get("type") is None else i for i in value
        ]
    return value


Items = Annotated[
    list[Item],
    Field(min_length=1, max_length=MAX_MESSAGES),
    BeforeValidator(_as_items, json_schema_input_type=str | list[Item]),
]


class FunctionTool(NullableForm):
    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(NullableForm):
    type: Literal["function"]
    name: str


class AllowedTools(NullableForm):
    """Some of the tools: the others are not shown to the model."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]


ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedFunction | AllowedTools, Field(discriminator="type")]
)


class PlainFormat(NullableForm):
    type: Literal["text"]


class ObjectFormat(NullableForm):
    type: Literal["json_object"]


class SchemaFormat(NullableForm):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextConfig(NullableForm):
    format: Annotated[PlainFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(NullableForm):
    """`summary`: accepted; the reasoning itself is given, in place of a summary."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(NullableForm):
    """`model`: the one that is loaded answers."""

    model: str | None = None
    input: Items
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
