"""The form of /v1/chat/completions, and how it becomes a ChatTask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ...tokenizer import Tokenizer
from ..errors import ApiError, unsupported
from ..limits import MAX_ANSWERS, MAX_MESSAGES, MAX_PROBS, MAX_TOOLS
from ..options import ServerOptions
from ..service import ChatTask
from .common import UNSUPPORTED, Form, SamplingForm, Tokens

EFFORTS: Mapping[str, str | None] = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
"""OpenAI's reasoning_effort as the model's own; none: no thinking."""

_CHAT_UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **UNSUPPORTED,
    "functions": (([],), "this old form is not supported, use `tools`"),
    "function_call": (("none",), "this old form is not supported, use `tool_choice`"),
    "grammar": (("",), "a grammar cannot be combined with the chat format, use `response_format`"),
    "audio": ((), "the model has no audio"),
    "modalities": ((["text"], []), "the model answers with text alone"),
    "prediction": ((), "predicted outputs are not supported"),
    "web_search_options": ((), "the server does not search the web"),
    "continue_final_message": ((False,), "an assistant's message cannot be continued"),
    "add_generation_prompt": ((True,), "a chat is always answered"),
    "chat_template": ((), "templates of requests are not run"),
    "mm_processor_kwargs": (({},), "the model reads text alone"),
}


MessageObject = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "required": ["role"],
            "properties": {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}},
        }
    ),
]
"""A message in OpenAI's form; the chat format reads it (messages.py)."""


class StreamOptions(Form):
    include_usage: bool | None = None


class ThinkingForm(Form):
    """Moonshot's own way to switch thinking."""

    type: Literal["enabled", "disabled"]


class ChatForm(SamplingForm):
    """OpenAI's fields and llama.cpp's."""

    messages: Annotated[list[MessageObject], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    max_completion_tokens: Tokens | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_PROBS)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    json_schema: Any = None
    reasoning_effort: str | None = None
    reasoning_format: Literal["none", "deepseek", "auto"] | None = None
    thinking: ThinkingForm | None = None
    thinking_budget_tokens: Tokens | None = None
    reasoning_budget: Tokens | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def token_limit(self) -> int | None:
        limit = self.max_completion_tokens
        return super().token_limit() if limit is None else limit

    def to_task(self, defaults: ServerOptions, tokenizer: Tokenizer) -> ChatTask:
        """ApiError 400 for what cannot be done."""
        self.check_supported(_CHAT_UNSUPPORTED)
        kwargs = self.chat_template_kwargs or {}
        if _has_template(kwargs):
            raise unsupported("chat_template_kwargs", "templates of requests are not run")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs: found a number, wanted logprobs to be true with it")
        thinking, effort = self._thinking(kwargs, defaults)
        budget = _first(self.thinking_budget_tokens, self.reasoning_budget, defaults.reasoning_budget)
        return ChatTask(
            messages=self.messages,
            tools=_checked_tools(self.tools) or None,
            tool_choice=self.tool_choice,
            response_format=self._response_format(),
            thinking=thinking,
            effort=effort,
            thinking_budget=budget,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            options=self.answer_options(defaults, tokenizer, self._n_probs()),
        )

    def _n_probs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def _response_format(self) -> Mapping[str, Any] | None:
        if self.json_schema is None:
            return self.response_format
        if self.response_format is not None:
            raise ApiError(400, "json_schema: found response_format as well, wanted one of the two")
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.json_schema}}

    def _thinking(self, kwargs: Mapping[str, Any], defaults: ServerOptions) -> tuple[bool, str | None]:
        """Whether the model thinks, and its effort; what the request says goes before the server's flags."""
        thinking, effort = defaults.thinking, defaults.reasoning_effort
        if self.reasoning_effort is not None:
            effort = _effort("reasoning_effort", self.reasoning_effort)
            thinking = effort is not None
        for name in ("thinking_effort", "reasoning_effort", "effort"):
            if kwargs.get(name) is not None:
                effort = _effort(f"chat_template_kwargs.{name}", kwargs[name])
                thinking = effort is not None
        if self.thinking is not None:
            thinking = self.thinking.type == "enabled"
        for name in ("thinking", "enable_thinking"):
            if kwargs.get(name) is not None:
                thinking = _switch(f"chat_template_kwargs.{name}", kwargs[name])
        return thinking, effort


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _effort(name: str, value: Any) -> str | None:
    if not isinstance(value, str) or value not in EFFORTS:
        raise ApiError(400, f"{name}: found {value!r:.80}, wanted one of {', '.join(EFFORTS)}", param=name)
    return EFFORTS[value]


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ApiError(400, f"{name}: found {value!r:.80}, wanted true or false", param=name)
    return value


def _has_template(value: Any) -> bool:
    if isinstance(value, dict):
        return "chat_template" in value or any(_has_template(item) for item in value.values())
    return isinstance(value, list) and any(_has_template(item) for item in value)


def _checked_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """OpenAI's declarations of functions; ApiError 400 names what is none."""
    for index, tool in enumerate(tools or ()):
        place = f"tools[{index}]"
        if tool.get("type", "function") != "function":
            raise ApiError(400, f"{place}.type: found {tool['type']!r:.80}, wanted 'function'", param="tools")
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise ApiError(
                400, f"{place}.function.name: found {name!r:.80}, wanted a function's name", param="tools"
            )
    return tools or []
