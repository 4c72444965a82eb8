"""One dialogue in one sequence: only what is new is computed at each turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..chat import ChatFormat, chat_format
from ..context import Context
from ..errors import ArgumentError, ContextFullError
from ..generate import TextStream, generate_tokens
from ..sampling import Sampler
from ..tokenizer import Tokenizer
from ..xtml import Delta, Message, encode

# A prompt that adds more tokens leaves a checkpoint before its last one, so that it is never read twice.
_LONG = 256


@dataclass(frozen=True)
class SessionOptions:
    """`n_predict`: most tokens of an answer, -1: no limit. `ignore_eos`: no answer ends by itself.

    `system`: first message. `tools`: in OpenAI's form. `effort`: of thinking; None: the highest.
    """

    n_predict: int = -1
    ignore_eos: bool = False
    system: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    effort: str | None = None


class Generator:
    """Continues tokens in sequence 0 of a context, which may lag behind or hold something else."""

    def __init__(
        self, context: Context, tokenizer: Tokenizer, sampler: Sampler, options: SessionOptions
    ) -> None:
        self.context = context
        self.tokenizer = tokenizer
        self._sampler = sampler
        self._n_predict = options.n_predict
        self._banned = tokenizer.end_ids if options.ignore_eos else frozenset[int]()

    def answer(self, tokens: Sequence[int]) -> Iterator[int]:
        """Tokens of the answer, up to the end token and with it. ContextFullError: no room for the next."""
        n_ctx = self.context.params.n_ctx
        if len(tokens) > n_ctx:
            raise ContextFullError(f"found {len(tokens)} tokens, wanted at most {n_ctx} in all")
        if not self._n_predict:
            return
        pending = tokens[self._common_position(tokens) :]
        if len(pending) > _LONG:
            self.context.decode(pending[:-1], logits="none")
            self.context.checkpoint()
            pending = pending[-1:]
        generated = generate_tokens(self.context, pending, self._sampler, self._banned)
        for count, token in enumerate(generated, 1):
            yield token
            if token in self.tokenizer.end_ids or count == self._n_predict:
                return

    def _common_position(self, tokens: Sequence[int]) -> int:
        """Goes back to what the sequence has in common with `tokens`, all but the last of them at most."""
        held = self.context.token_array()
        size = min(held.size, len(tokens) - 1)
        differ = np.nonzero(held[:size] != np.asarray(tokens[:size], np.int32))[0]
        position = self.context.truncate(0, int(differ[0]) if differ.size else size)
        self.context.checkpoint()  # for the next time
        return position


class TextSession:
    """For a vocabulary without chat markers: each text is continued, behind all before it."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._tokens: list[int] = []

    def ask(self, text: str) -> Iterator[Delta]:
        """What follows the text, as it comes. ContextFullError; a text that does not fit is taken back."""
        tokenizer = self._generator.tokenizer
        tokens = self._tokens + tokenizer.encode(text)
        stream = TextStream()
        for token in self._generator.answer(tokens):
            tokens.append(token)
            self._tokens = tokens
            if token in tokenizer.end_ids:
                break
            if shown := stream.feed(tokenizer.decode_bytes([token])):
                yield Delta("content", shown)
        if shown := stream.close():
            yield Delta("content", shown)


class ChatSession:
    """A dialogue as OpenAI messages, rendered anew at each turn."""

    def __init__(self, generator: Generator, chat: ChatFormat, options: SessionOptions) -> None:
        self._generator = generator
        self._chat = chat
        self._options = options
        self.messages: list[dict[str, Any]] = []
        self.clear()

    def ask(self, text: str) -> Iterator[Delta]:
        """The answer to a message, or to the result of the open call, as it comes.

        An answer that is broken off (by an exception, by closing the iterator, by the limit) stays as far as
        it came. A message without any answer is taken back. ContextFullError when either does not fit.
        """
        call = self.open_call
        if call is None:
            self.messages.append({"role": "user", "content": text})
        else:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if self.open_call is not None:
            return iter(())
        return self._reply()

    @property
    def open_call(self) -> dict[str, Any] | None:
        """The first tool call of the last answer that has no result yet."""
        for results, message in enumerate(reversed(self.messages)):
            if message["role"] != "tool":
                calls: list[dict[str, Any]] = message.get("tool_calls") or []
                return calls[results] if results < len(calls) else None
        return None

    def regenerate(self) -> Iterator[Delta]:
        """Another answer in place of the last one. ArgumentError: there is none."""
        if not any(message["role"] == "assistant" for message in self.messages):
            raise ArgumentError("/regen: found no answer, wanted one to replace")
        while self.messages.pop()["role"] != "assistant":
            pass
        return self._reply()

    def undo(self) -> str:
        """Takes back the last message of the user with all that followed; its text. ArgumentError: none."""
        users = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not users:
            raise ArgumentError("/undo: found no message, wanted one to take back")
        text: str = self.messages[users[-1]]["content"]
        del self.messages[users[-1] :]
        return text

    def clear(self) -> None:
        """Starts anew, with the system message alone."""
        system = self._options.system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def _reply(self) -> Iterator[Delta]:
        chat, tokenizer = self._chat, self._generator.tokenizer
        thinking = chat.supports_thinking
        count = len(self.messages)
        try:
            segments = chat.render(self.messages, self._options.tools, thinking, self._options.effort)
        except ArgumentError:
            self._take_back()
            raise
        reader = chat.reader(tokenizer, chat.opened(thinking))
        begun = False
        try:
            for token in self._generator.answer(encode(segments, tokenizer)):
                begun = True
                yield from reader.feed(token)
            yield from reader.flush()
        finally:
            if len(self.messages) == count:
                if begun:
                    self.messages.append(_message_of(reader.close(), count))
                else:
                    self._take_back()

    def _take_back(self) -> None:
        """The last messages that have no answer: the user's, or the results of calls."""
        while self.messages and self.messages[-1]["role"] in ("user", "tool"):
            self.messages.pop()


def _message_of(answer: Message, number: int) -> dict[str, Any]:
    """An answer in OpenAI's form. `number`: its place in the dialogue, which makes the calls' ids unique."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(answer.tool_calls)
        ]
    return message


def open_session(
    generator: Generator, template: str | None, options: SessionOptions
) -> ChatSession | TextSession:
    """A chat where the vocabulary has the markers of one. `template`: the file's tokenizer.chat_template."""
    chat = chat_format(generator.tokenizer, template)
    return TextSession(generator) if chat is None else ChatSession(generator, chat, options)
