"""The forms of requests to /v1/messages. Unknown fields are ignored, `cache_control` among them: the prefix
cache needs no marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from ..limits import INT32_MAX, MAX_MESSAGES, MAX_STOP_LENGTH, MAX_STOP_STRINGS, MAX_TOOLS
from ..schemas.nullable import NullableForm

MAX_NAME = 128
"""Characters of a tool's name, as at Anthropic."""


class TextBlock(NullableForm):
    type: Literal["text"]
    text: str


class ThinkingBlock(NullableForm):
    """Reasoning of an earlier answer. `signature`: see opaque.py; another server's is accepted."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(NullableForm):
    """Reasoning that another server has hidden; nothing of it can be used."""

    type: Literal["redacted_thinking"]
    data: str = ""


class ToolUseBlock(NullableForm):
    type: Literal["tool_use"]
    id: str
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]


def _as_blocks(content: Any) -> Any:
    """A string is short for one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TextBlocks = Annotated[
    list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])
]


class ToolResultBlock(NullableForm):
    type: Literal["tool_result"]
    tool_use_id: str
    content: TextBlocks = []
    is_error: bool = False


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]
Blocks = Annotated[list[Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block])]


class Message(NullableForm):
    role: Literal["user", "assistant", "system"]
    content: Blocks


StopSequence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class Tool(NullableForm):
    """A tool that the client runs. Anthropic's own tools have other types."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(NullableForm):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(NullableForm):
    """`enabled` and `adaptive` are the same but for the budget. `display` omitted: the text of the reasoning
    is not shown, the signature holds it."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(NullableForm):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(NullableForm):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class PromptRequest(NullableForm):
    """What decides the prompt: the body of count_tokens. `model`: the one that is loaded answers."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: TextBlocks = []
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(PromptRequest):
    """The body of /v1/messages. `container`, `mcp_servers`: known, and not done here."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)]
    stop_sequences: Annotated[list[StopSequence], Field(max_length=MAX_STOP_STRINGS)] = []
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    metadata: Mapping[str, Any] | None = None
    container: Any = None
    mcp_servers: Any = None


class ErrorObject(BaseModel):
    """`code`: context_length_exceeded, with both counts of tokens beside it."""

    type: str
    message: str
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error, for OpenAPI."""

    type: Literal["error"]
    error: ErrorObject
