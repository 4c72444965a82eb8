"""Anthropic's requests as tasks of the service.

What has no place in Kimi-K3's chat format: the error flag of a tool's result becomes a first line, text
around tool results keeps its order as messages of its own, and an answer cannot be begun by the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...errors import ArgumentError
from .. import opaque
from ..options import ServerOptions
from ..schemas.chat import EFFORTS
from ..service import AnswerOptions, ChatTask
from .schema import (
    Message,
    MessagesRequest,
    PromptRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

ERROR_LINE = "Error: "
"""What a tool's result with `is_error` begins with."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# A line that Claude Code puts before its system prompt. It differs from request to request, for Anthropic's
# own use; left in, it would keep every prompt of a session from sharing a prefix with the one before.
_PSEUDO_HEADER = "x-anthropic-billing-header:"


def chat_task(request: PromptRequest, defaults: ServerOptions) -> ChatTask:
    """`defaults`: for what the request leaves out. ArgumentError names the message or field that cannot be
    used.

    Without `thinking` the model does what the server is started for. That is thinking where nothing else was
    said, as at its maker's API and at /v1/chat/completions.
    """
    thinking, choice = request.thinking, request.tool_choice
    effort = request.output_config.effort if request.output_config else None
    budget = _thinking_budget(request, defaults)
    thinks = thinking.type != "disabled" if thinking else defaults.thinking
    return ChatTask(
        messages=[*_system(request), *_messages(request)],
        tools=_tools(request),
        tool_choice=_tool_choice(request),
        response_format=_response_format(request),
        thinking=thinks and budget != 0,
        effort=EFFORTS[effort] if effort else defaults.reasoning_effort,
        thinking_budget=budget,
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        options=_answer_options(request, defaults),
    )


def _thinking_budget(request: PromptRequest, defaults: ServerOptions) -> int:
    """Tokens; -1: no limit."""
    thinking = request.thinking
    if thinking is None or thinking.type != "enabled":
        return defaults.reasoning_budget
    if thinking.budget_tokens is None:
        raise ArgumentError("thinking.budget_tokens: found nothing, wanted a number of tokens")
    return thinking.budget_tokens


def _answer_options(request: PromptRequest, defaults: ServerOptions) -> AnswerOptions:
    if not isinstance(request, MessagesRequest):
        return AnswerOptions()
    for field in ("container", "mcp_servers"):
        if getattr(request, field):
            raise ArgumentError(f"{field}: not supported, tools run at the client only")
    chosen = {name: getattr(request, name) for name in ("temperature", "top_p", "top_k")}
    given = {name: value for name, value in chosen.items() if value is not None}
    return AnswerOptions(
        sampling=replace(defaults.sampling, **given),
        max_tokens=request.max_tokens,
        stop=tuple(request.stop_sequences),
        cache_prompt=defaults.cache_prompt,
        ignore_eos=defaults.ignore_eos,
    )


def _system(request: PromptRequest) -> Iterator[dict[str, Any]]:
    texts = []
    for block in request.system:
        text = block.text
        if text.startswith(_PSEUDO_HEADER):
            text = text.partition("\n")[2]
        if text:
            texts.append(text)
    if texts:
        yield {"role": "system", "content": _content(texts)}


def _content(texts: list[str]) -> str | list[dict[str, str]]:
    """One text as a string, more as parts."""
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _messages(request: PromptRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for number, message in enumerate(request.messages):
        if message.role == "assistant":
            assistant = _assistant(message, number, names)
            if messages and messages[-1]["role"] == "assistant":
                _join(messages[-1], assistant)
            else:
                messages.append(assistant)
        else:
            messages += _others(message, number, names)
    if request.messages[-1].role == "assistant":
        raise ArgumentError(
            f"messages[{len(request.messages) - 1}].role: found assistant, wanted user or system last "
            "(an answer cannot be begun by the client)"
        )
    return messages


def _assistant(message: Message, number: int, names: dict[str, str]) -> dict[str, Any]:
    """One message of the assistant; the names of its calls are added by their ids."""
    reasoning, content, calls = "", "", []
    for position, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            content += block.text
        elif isinstance(block, ThinkingBlock):
            reasoning += block.thinking or opaque.unseal(block.signature)
        elif isinstance(block, ToolUseBlock):
            names[block.id] = block.name
            arguments = json.dumps(block.input, ensure_ascii=False)
            function = {"name": block.name, "arguments": arguments}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif not isinstance(block, RedactedThinkingBlock):
            raise _misplaced(number, position, block.type, "assistant")
    return {
        "role": "assistant",
        "content": content,
        **({"reasoning_content": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _join(message: dict[str, Any], more: dict[str, Any]) -> None:
    """Messages of the assistant in a row are one turn."""
    for key in ("content", "reasoning_content", "tool_calls"):
        if key in more:
            message[key] = message[key] + more[key] if key in message else more[key]


def _others(message: Message, number: int, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Messages of a user or system message: runs of text, and each tool's result."""
    texts: list[str] = []
    for position, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock) and message.role == "user":
            if texts:
                yield {"role": "user", "content": _content(texts)}
                texts = []
            yield _tool_result(block, f"messages[{number}].content[{position}]", names)
        else:
            raise _misplaced(number, position, block.type, message.role)
    if texts or not message.content:
        yield {"role": message.role, "content": _content(texts) if texts else ""}


def _tool_result(block: ToolResultBlock, path: str, names: dict[str, str]) -> dict[str, Any]:
    if block.tool_use_id not in names:
        raise ArgumentError(
            f"{path}.tool_use_id: found {block.tool_use_id!r}, wanted the id of a tool_use block before it"
        )
    text = "".join(part.text for part in block.content)
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "name": names[block.tool_use_id],
        "content": ERROR_LINE + text if block.is_error else text,
    }


def _misplaced(number: int, position: int, kind: str, role: str) -> ArgumentError:
    return ArgumentError(f"messages[{number}].content[{position}]: found {kind} in a message of role {role}")


def _tools(request: PromptRequest) -> list[dict[str, Any]] | None:
    if not request.tools:
        return None
    functions = []
    for tool in request.tools:
        described = {} if tool.description is None else {"description": tool.description}
        functions.append({"name": tool.name, **described, "parameters": tool.input_schema})
    return [{"type": "function", "function": function} for function in functions]


def _tool_choice(request: PromptRequest) -> Any:
    choice = request.tool_choice
    if choice is None:
        return None
    if choice.type != "tool":
        if choice.type == "any" and not request.tools:
            raise ArgumentError("tool_choice.type: found any without tools, wanted at least one tool")
        return _CHOICES[choice.type]
    names = [tool.name for tool in request.tools or ()]
    if choice.name not in names:
        raise ArgumentError(f"tool_choice.name: found {choice.name!r}, wanted one of the tools {names}")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(request: PromptRequest) -> dict[str, Any] | None:
    wanted = request.output_config.format if request.output_config else None
    if wanted is None:
        return None
    return {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": wanted.schema_, "strict": True},
    }
