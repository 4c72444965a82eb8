"""Chat formats: one protocol for both model families, from OpenAI messages to segments and from tokens back.

Kimi-K3 talks XTML (xtml); Kimi-Linear uses Kimi-K2's turns (k2.py), written by the chat template of its file
where it has one (template.py). The vocabulary tells which: the same ids have other names in the two.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from . import k2, xtml
from .errors import ArgumentError
from .messages import (
    ChatMessage,
    read_messages,
    read_response_format,
    read_tool_choice,
    read_tools,
    tool_names,
)
from .template import ChatTemplate
from .tokenizer import Tokenizer
from .xtml import Channel, Delta, Message, Opened, Segment


class AnswerReader(Protocol):
    """Reads one answer token by token; no output of a model makes it fail."""

    @property
    def channel(self) -> Channel:
        """What the next text would be. A token was spent on reasoning if this is "reasoning" before it."""

    def feed(self, token: int) -> list[Delta]:
        """What the token adds to the answer."""

    def flush(self) -> list[Delta]:
        """What the end of the answer adds: characters that were held back. No token is read after it."""

    def close(self) -> Message:
        """The whole answer: what all deltas, those of `flush` included, add up to."""

    def close_thinking(self, tokenizer: Tokenizer) -> list[int]:
        """Tokens that close the think channel from here and open the response; none outside of it."""


class ChatFormat(Protocol):
    """How a dialogue looks to the model."""

    @property
    def supports_thinking(self) -> bool:
        """Whether the model has a channel for reasoning."""

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = True,
        effort: str | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """OpenAI messages with the opening of the answer. ArgumentError names what cannot be rendered."""

    def opened(self, thinking: bool = True) -> Opened | None:
        """The channel that `render` opens."""

    def reader(self, tokenizer: Tokenizer, opened: Opened | None) -> AnswerReader:
        """For one answer."""


class _Parser(Protocol):
    """The part of a reader that knows the format."""

    @property
    def channel(self) -> Channel: ...
    def feed(self, piece: Segment) -> list[Delta]: ...
    def flush(self) -> list[Delta]: ...
    def close(self) -> Message: ...
    def close_thinking(self) -> list[Segment]: ...


class TokenReader:
    """AnswerReader of a format's parser. A character is held back until its last byte has come."""

    def __init__(self, tokenizer: Tokenizer, parser: _Parser) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def channel(self) -> Channel:
        return self._parser.channel

    def feed(self, token: int) -> list[Delta]:
        name = self._tokenizer.special_name(token)
        if name is None:
            return self._text(self._decoder.decode(self._tokenizer.decode_bytes([token])))
        return self._held() + self._parser.feed(Segment("control", name))

    def flush(self) -> list[Delta]:
        return self._held() + self._parser.flush()

    def close(self) -> Message:
        self.flush()
        return self._parser.close()

    def close_thinking(self, tokenizer: Tokenizer) -> list[int]:
        return xtml.encode(self._parser.close_thinking(), tokenizer)

    def _text(self, text: str) -> list[Delta]:
        return self._parser.feed(Segment("text", text)) if text else []

    def _held(self) -> list[Delta]:
        """Bytes of a character that did not become whole count as U+FFFD."""
        return self._text(self._decoder.decode(b"", final=True))


class K3Chat:
    """XTML."""

    supports_thinking = True

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = True,
        effort: str | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        return xtml.render(messages, tools, thinking, effort, tool_choice, response_format)

    def opened(self, thinking: bool = True) -> Opened | None:
        return "think" if thinking else "response"

    def reader(self, tokenizer: Tokenizer, opened: Opened | None) -> AnswerReader:
        return TokenReader(tokenizer, xtml.StreamParser(opened))


class K2Chat:
    """Kimi-K2's turns. The format has no thinking, and no words for a tool choice or a response format.

    With the tool choice `none` the tools are not declared.
    """

    supports_thinking = False

    def __init__(self, template: ChatTemplate | None = None) -> None:
        """`template`: writes the prompt in place of the built-in form, not for tools it has no words for."""
        self._template = template

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool = True,
        effort: str | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """`thinking` has no meaning here; an `effort` is refused."""
        if effort is not None:
            raise ArgumentError(f"effort: found {effort!r}, wanted none: the model does not think")
        declared = read_tools(tools)
        read = read_messages(messages)
        if read_tool_choice(tool_choice, tool_names(declared, read)) == "none":
            declared = ()
        read_response_format(response_format)
        has_tools = declared or any(message.tools or message.calls for message in read)
        if self._template is None or (has_tools and not self._template.knows_tools):
            return k2.render(read, declared)
        return self._template.render(template_messages(read), declared)

    def opened(self, thinking: bool = True) -> Opened | None:
        return None

    def reader(self, tokenizer: Tokenizer, opened: Opened | None) -> AnswerReader:
        return TokenReader(tokenizer, k2.StreamParser())


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as chat templates expect them: OpenAI's form, with texts in one piece and proper ids."""
    shaped = []
    for message, ids in k2.with_ids(messages):
        fields: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.name:
            fields["name"] = message.name
        if message.reasoning:
            fields["reasoning_content"] = message.reasoning
        if message.tools:
            fields["tools"] = message.tools
        if message.calls:
            fields["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": k2.arguments_text(call)},
                }
                for call, call_id in zip(message.calls, ids, strict=True)
            ]
        if message.role == "tool":
            fields["tool_call_id"] = ids[0]
        shaped.append(fields)
    return shaped


def chat_format(tokenizer: Tokenizer, template: str | None = None) -> ChatFormat | None:
    """The format of the vocabulary's markers; None where it has none of either kind.

    `template`: the file's tokenizer.chat_template. Kimi-K3's is not used: it cannot keep the bytes of tool
    arguments, as xtml does. ArgumentError: it is no template.
    """
    if all(marker in tokenizer.special_ids for marker in xtml.MARKERS):
        return K3Chat()
    if all(marker in tokenizer.special_ids for marker in k2.MARKERS):
        return K2Chat(None if template is None else ChatTemplate(template, tokenizer.special_ids))
    return None
