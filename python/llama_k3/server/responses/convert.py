"""OpenAI's Responses requests as tasks of the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from .. import opaque
from ..engine.request import Sampling
from ..errors import ApiError, unsupported
from ..options import ServerOptions
from ..schemas.chat import EFFORTS
from ..service import AnswerOptions, ChatTask
from .schema import (
    AllowedTools,
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    MessageItem,
    NamedFunction,
    ObjectFormat,
    Part,
    ReasoningItem,
    RefusalPart,
    ResponsesRequest,
    SchemaFormat,
)

SEALED_REASONING = "reasoning.encrypted_content"
"""The word in `include` that asks for reasoning in a form that is returned unread."""


def chat_task(request: ResponsesRequest, defaults: ServerOptions) -> ChatTask:
    """`defaults`: for what the request leaves out. ApiError names the field that cannot be used."""
    _refuse_unsupported(request)
    effort = request.reasoning.effort if request.reasoning else None
    tools, choice = _tools_and_choice(request)
    limit = request.max_output_tokens
    return ChatTask(
        messages=_messages(request),
        tools=tools,
        tool_choice=choice,
        response_format=_response_format(request),
        thinking=effort != "none" if effort else defaults.thinking,
        effort=EFFORTS[effort] if effort else defaults.reasoning_effort,
        thinking_budget=defaults.reasoning_budget,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        options=AnswerOptions(
            sampling=sampling_of(request, defaults),
            max_tokens=defaults.n_predict if limit is None else limit,
            cache_prompt=defaults.cache_prompt,
            ignore_eos=defaults.ignore_eos,
        ),
    )


def sampling_of(request: ResponsesRequest, defaults: ServerOptions) -> Sampling:
    """The sampling that a request asks for."""
    sampling = defaults.sampling
    if request.temperature is not None:
        sampling = replace(sampling, temperature=request.temperature)
    if request.top_p is not None:
        sampling = replace(sampling, top_p=request.top_p)
    return sampling


def _refuse_unsupported(request: ResponsesRequest) -> None:
    if request.store:
        raise unsupported("store", "found true, wanted false: answers are not stored here")
    for field in ("previous_response_id", "conversation"):
        if getattr(request, field) is not None:
            raise unsupported(field, "not supported, answers are not stored here: send the whole input")
    if request.background:
        raise unsupported("background", "found true, wanted false: answers are made while the client waits")
    if request.truncation == "auto":
        raise unsupported("truncation", "found auto, wanted disabled: no part of the input is dropped here")
    for field in ("prompt", "context_management", "moderation"):
        if getattr(request, field):
            raise unsupported(field, "not supported")
    if request.top_logprobs or "message.output_text.logprobs" in (request.include or ()):
        raise unsupported("top_logprobs", "not supported here, /v1/chat/completions has log probabilities")
    if request.text and request.text.verbosity in ("low", "high"):
        raise unsupported(
            "text.verbosity", f"found {request.text.verbosity}, wanted medium: one kind of text only"
        )


def _messages(request: ResponsesRequest) -> list[dict[str, Any]]:
    """Items as messages: what the assistant said and called in a row is one message."""
    messages: list[dict[str, Any]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    names: dict[str, str] = {}
    for number, item in enumerate(request.input):
        if isinstance(item, FunctionOutputItem):
            messages.append(_tool_message(item, number, names))
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append({"role": item.role, "content": _text(item.content)})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            _add_to_assistant(messages[-1], item)
            if isinstance(item, FunctionCallItem):
                names[item.call_id] = item.name
    if messages[-1]["role"] == "assistant":
        number = len(request.input) - 1
        raise ApiError(
            400,
            f"input[{number}]: found the assistant's, wanted a message or a function's output last "
            "(an answer cannot be begun by the client)",
            param="input",
        )
    return messages


def _add_to_assistant(message: dict[str, Any], item: MessageItem | FunctionCallItem | ReasoningItem) -> None:
    if isinstance(item, MessageItem):
        message["content"] += _text(item.content)
    elif isinstance(item, FunctionCallItem):
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    else:
        text = "".join(part.text for part in item.content or ())
        text = text or opaque.unseal(item.encrypted_content or "")
        message["reasoning_content"] = message.get("reasoning_content", "") + text


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in parts)


def _tool_message(item: FunctionOutputItem, number: int, names: dict[str, str]) -> dict[str, Any]:
    if item.call_id not in names:
        raise ApiError(
            400,
            f"input[{number}].call_id: found {item.call_id!r}, wanted that of a function_call before it",
            param=f"input[{number}].call_id",
        )
    return {
        "role": "tool",
        "tool_call_id": item.call_id,
        "name": names[item.call_id],
        "content": _text(item.output),
    }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    """In the form of chat completions."""
    fields = ("name", "description", "parameters", "strict")
    function = {name: getattr(tool, name) for name in fields if getattr(tool, name) is not None}
    return {"type": "function", "function": function}


def _tools_and_choice(request: ResponsesRequest) -> tuple[list[dict[str, Any]] | None, Any]:
    tools = request.tools or []
    choice: Any = request.tool_choice
    names = [tool.name for tool in tools]
    wanted: list[str] = []
    if isinstance(choice, NamedFunction):
        wanted = [choice.name]
    elif isinstance(choice, AllowedTools):
        wanted = [tool.name for tool in choice.tools]
    for name in wanted:
        if name not in names:
            raise ApiError(
                400, f"tool_choice: found {name!r}, wanted one of the tools {names}", param="tool_choice"
            )
    if choice == "required" and not tools:
        raise ApiError(
            400, "tool_choice: found required without tools, wanted at least one tool", param="tool_choice"
        )
    if isinstance(choice, AllowedTools):
        return [_tool(tool) for tool in tools if tool.name in wanted], choice.mode
    if isinstance(choice, NamedFunction):
        choice = {"type": "function", "function": {"name": choice.name}}
    return [_tool(tool) for tool in tools] or None, choice


def _response_format(request: ResponsesRequest) -> dict[str, Any] | None:
    wanted = request.text.format if request.text else None
    if isinstance(wanted, SchemaFormat):
        schema = {"name": wanted.name, "schema": wanted.schema_, "strict": wanted.strict}
        return {"type": "json_schema", "json_schema": {k: v for k, v in schema.items() if v is not None}}
    return {"type": "json_object"} if isinstance(wanted, ObjectFormat) else None


def shown_request(request: ResponsesRequest, defaults: ServerOptions) -> dict[str, Any]:
    """The fields of a response that tell how it was asked for."""
    sampling = sampling_of(request, defaults)
    reasoning, text, choice = request.reasoning, request.text, request.tool_choice
    wanted = text.format.model_dump(by_alias=True) if text and text.format else {"type": "text"}
    return {
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": wanted, "verbosity": "medium"},
        "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }
