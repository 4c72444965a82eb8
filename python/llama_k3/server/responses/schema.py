"""The forms of requests to /v1/responses. Unknown fields are ignored; known ones that cannot be done here
are refused in convert.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..limits import INT32_MAX, MAX_MESSAGES, MAX_TOOLS

MAX_NAME = 64
"""Characters of a function's name, as at OpenAI."""
MAX_METADATA = 16


class _Form(BaseModel):
    """Fields that are null count as missing."""

    model_config = ConfigDict(strict=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class TextPart(_Form):
    """Text of the user (input_text), the assistant (output_text), or either (text)."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(_Form):
    type: Literal["refusal"]
    refusal: str


def _as_parts(content: Any) -> Any:
    """A string is short for one part of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Parts = Annotated[list[Part], BeforeValidator(_as_parts, json_schema_input_type=str | list[Part])]


class MessageItem(_Form):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class FunctionCallItem(_Form):
    type: Literal["function_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class FunctionOutputItem(_Form):
    type: Literal["function_call_output"]
    call_id: str
    output: Parts


class ReasoningText(_Form):
    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(_Form):
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


class FunctionTool(_Form):
    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(_Form):
    type: Literal["function"]
    name: str


class AllowedTools(_Form):
    """Some of the tools: the others are not shown to the model."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]


ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedFunction | AllowedTools, Field(discriminator="type")]
)


class PlainFormat(_Form):
    type: Literal["text"]


class ObjectFormat(_Form):
    type: Literal["json_object"]


class SchemaFormat(_Form):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextConfig(_Form):
    format: Annotated[PlainFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(_Form):
    """`summary`: accepted; the reasoning itself is given, in place of a summary."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(_Form):
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
