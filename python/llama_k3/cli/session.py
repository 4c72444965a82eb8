"""One dialogue in one sequence: only what is new is computed at each turn."""

from __future__ import annotations

from collections.abc import Iterator

from ..chat import chat_format
from ..context import Context
from ..errors import ContextFullError
from ..generate import TextStream, generate_tokens
from ..sampling import Sampler
from ..tokenizer import Tokenizer
from ..xtml import Delta, encode


class Session:
    """Asks and answers. The sequence may lag behind the dialogue's tokens; the next turn makes up for it."""

    def __init__(
        self, context: Context, tokenizer: Tokenizer, sampler: Sampler, n_predict: int, ignore_eos: bool
    ) -> None:
        """`n_predict`: most tokens of an answer, -1: no limit. `ignore_eos`: no answer ends by itself."""
        self._context = context
        self._tokenizer = tokenizer
        self._sampler = sampler
        self._n_predict = n_predict
        self._banned = tokenizer.end_ids if ignore_eos else frozenset[int]()
        self._format = chat_format(tokenizer)
        self._tokens: list[int] = []

    @property
    def is_chat(self) -> bool:
        """False: the vocabulary has no chat markers, so that a message is a text to continue."""
        return self._format is not None

    def ask(self, text: str) -> Iterator[Delta]:
        """The answer, as it comes. ContextFullError when the message or the answer does not fit.

        A message that does not fit is taken back. An answer that is broken off (by an exception, by closing
        the iterator, by the limit) is ended in proper form, so that the dialogue can go on.
        """
        return self._chat(text) if self._format is not None else self._continue(text)

    def _pending(self, added: list[int]) -> list[int]:
        """Tokens to compute once `added` is part of the dialogue."""
        wanted = len(self._tokens) + len(added)
        if wanted > self._context.params.n_ctx:
            raise ContextFullError(
                f"found {len(added)} new tokens after {len(self._tokens)}, wanted at most "
                f"{self._context.params.n_ctx} in all"
            )
        self._tokens += added
        return self._tokens[self._context.position() :]

    def _answer(self, pending: list[int]) -> Iterator[int]:
        """Tokens of the answer, up to the end token and with it."""
        if not self._n_predict:
            return
        tokens = generate_tokens(self._context, pending, self._sampler, self._banned)
        for count, token in enumerate(tokens, 1):
            self._tokens.append(token)
            yield token
            if token in self._tokenizer.end_ids or count == self._n_predict:
                return

    def _chat(self, text: str) -> Iterator[Delta]:
        assert self._format is not None
        segments = self._format.turn(text) if self._tokens else self._format.first() + self._format.turn(text)
        pending = self._pending(encode(segments, self._tokenizer))
        reader = self._format.reader(self._tokenizer, self._format.opened())
        ended = False
        try:
            for token in self._answer(pending):
                ended = token in self._tokenizer.end_ids
                yield from reader.feed(token)
        finally:
            if not ended:
                self._tokens += encode(reader.finish(), self._tokenizer)

    def _continue(self, text: str) -> Iterator[Delta]:
        stream = TextStream()
        for token in self._answer(self._pending(self._tokenizer.encode(text))):
            if token in self._tokenizer.end_ids:
                break
            if shown := stream.feed(self._tokenizer.decode_bytes([token])):
                yield Delta("content", shown)
        if shown := stream.close():
            yield Delta("content", shown)
