"""Generation: tokens one after the other, and their bytes as text that is safe to show."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .arguments import integer
from .errors import ArgumentError

if TYPE_CHECKING:
    from .context import Context, Tokens
    from .model import Model
    from .sampling import Sampler

# A logit that is never drawn; the sampler refuses infinities.
_NEVER = np.float32(-1e30)


def generate_tokens(
    context: Context, tokens: Tokens, sampler: Sampler, banned: Collection[int] = (), seq: int = 0
) -> Iterator[int]:
    """Decode `tokens` (at least one), then sample and decode without end; yields the sampled tokens.

    The sequence holds all tokens but the last one yielded. `banned` ids are never drawn. Raises what
    Context.decode raises.
    """
    excluded = list(banned)
    pending = tokens
    while True:
        row = context.decode(pending, seq=seq)[0]
        row[excluded] = _NEVER
        token = sampler.sample(row)
        yield token
        pending = [token]


class TextStream:
    """Turns bytes of tokens into text. Holds back incomplete characters and what may begin a stop string."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        """The text ends before the `stop` string that is complete first."""
        if any(not isinstance(text, str) or not text for text in stop):
            raise ArgumentError(f"stop: found {list(stop)!r}, wanted strings that are not empty")
        self._stop = list(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False
        """A stop string was found: nothing more will come."""

    def feed(self, data: bytes) -> str:
        """The text that can be shown now."""
        return self._advance(self._decoder.decode(data))

    def close(self) -> str:
        """The text that was held back; an incomplete character becomes U+FFFD."""
        text = self._advance(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _advance(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in self._stop if stop in text]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def generate_text(
    model: Model, tokens: Sequence[int], max_tokens: int, sampler: Sampler, stop: Sequence[str]
) -> Iterator[str]:
    """Text that follows `tokens`, in a context of its own; see Model.generate."""
    max_tokens = integer("max_tokens", max_tokens, 0, 2**31 - 1)
    if not tokens:
        raise ArgumentError("prompt: found no tokens, wanted at least one")
    return _generate_text(model, tokens, max_tokens, sampler, TextStream(stop))


def _generate_text(
    model: Model, tokens: Sequence[int], max_tokens: int, sampler: Sampler, stream: TextStream
) -> Iterator[str]:
    if not max_tokens:
        return
    tokenizer = model.tokenizer
    with model.context(n_ctx=len(tokens) + max_tokens) as context:
        for count, token in enumerate(generate_tokens(context, tokens, sampler), 1):
            if token in tokenizer.end_ids:
                break
            if text := stream.feed(tokenizer.decode_bytes([token])):
                yield text
            if stream.stopped or count == max_tokens:
                break
    if text := stream.close():
        yield text
