"""Tokenizer: Kimi's byte pair encoding by rank, built from a GGUF's token list.

A GGUF stores the bytes of a token as printable characters (GPT-2's byte table); a token's rank is its id.
tiktoken does the merging. The merges list of the file is not read: it cannot hold every rank order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tiktoken

from .errors import ArgumentError, ModelVocabularyError

PRE_TOKENIZER = "kimi-k2"
_LETTERS_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LETTERS_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS_UPPER}*{_LETTERS_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS_UPPER}+{_LETTERS_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""Kimi's pre-tokeniser: words, up to three digits, punctuation, white space; && intersects classes."""

# Token types of a GGUF.
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
# The reference tokenizer cuts its input at both lengths, which bounds the time of a merge; so does this one,
# since a cut changes the tokens around it.
_MAX_PIECE = 400_000
_MAX_RUN = 25_000
_LONG_RUN = re.compile(rf"\s{{{_MAX_RUN + 1},}}|\S{{{_MAX_RUN + 1},}}")
# Tokens that end a text or a turn, besides the file's eos: converters disagree on which of them is the eos.
_END_TOKENS = ("[EOS]", "[EOT]", "<|end_of_msg|>", "<|im_end|>")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


_BYTE_OF_CHARACTER = _byte_of_character()


def _pieces(text: str) -> Iterator[str]:
    """The text cut to at most _MAX_PIECE characters and to runs of (non-)white space of at most _MAX_RUN."""
    for begin in range(0, len(text), _MAX_PIECE):
        block = text[begin : begin + _MAX_PIECE]
        start = 0
        for run in _LONG_RUN.finditer(block):
            for cut in range(run.start() + _MAX_RUN, run.end(), _MAX_RUN):
                yield block[start:cut]
                start = cut
        yield block[start:]


def _well_formed(text: str) -> str:
    """Surrogate pairs joined, lone surrogates as U+FFFD, so that the text has a UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Tokenizer:
    """Text to token ids and back. Thread-safe."""

    def __init__(self, tokens: Sequence[str], types: Sequence[int], eos_id: int = -1) -> None:
        """`tokens`, `types`: tokenizer.ggml.tokens and token_type. ModelVocabularyError: they do not fit."""
        if len(tokens) != len(types):
            raise ModelVocabularyError(
                f"tokenizer.ggml.token_type: found {len(types)} entries, wanted {len(tokens)}, "
                "one for each token"
            )
        self._bytes: list[bytes] = []
        ranks: dict[bytes, int] = {}
        self.special_ids: dict[str, int] = {}
        """Control tokens by text."""
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
            if kind == _NORMAL:
                data = _token_bytes(index, token)
                first = ranks.setdefault(data, index)
                if first != index:
                    raise ModelVocabularyError(f"token {index}: found the bytes of token {first} again")
            else:
                data = token.encode("utf-8")
                if kind in (_CONTROL, _USER_DEFINED):
                    self.special_ids[token] = index
            self._bytes.append(data)
        missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
        if missing:
            raise ModelVocabularyError(f"tokenizer.ggml.tokens: found none for the byte {missing[0]:#04x}")
        self.ranks: Mapping[bytes, int] = ranks
        """Tokens of plain text by their bytes."""
        self._encoding = tiktoken.Encoding(
            "kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special_ids
        )
        self._special_names = {index: name for name, index in self.special_ids.items()}
        self.end_ids = frozenset(
            [index for name, index in self.special_ids.items() if name in _END_TOKENS]
            + ([eos_id] if eos_id >= 0 else [])
        )
        """Tokens at which generation ends."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From a GGUF's tokenizer.ggml.* keys."""
        for key, wanted in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", PRE_TOKENIZER)):
            if metadata.get(key) != wanted:
                raise ModelVocabularyError(f"{key}: found {metadata.get(key)!r}, wanted {wanted!r}")
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            if not isinstance(metadata.get(key), list):
                raise ModelVocabularyError(f"{key}: found {type(metadata.get(key)).__name__}, wanted a list")
        return cls(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.token_type"],
            metadata.get("tokenizer.ggml.eos_token_id", -1),
        )

    @property
    def encoding(self) -> tiktoken.Encoding:
        """The vocabulary as tiktoken has it, for libraries that read it from there."""
        return self._encoding

    def __len__(self) -> int:
        return len(self._bytes)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids. `special`: names of control tokens become these tokens, else they are plain text.

        Lone surrogates count as U+FFFD.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"text: found {type(text).__name__}, wanted str")
        ids: list[int] = []
        for piece in _pieces(_well_formed(text)):
            if special:
                ids += self._encoding.encode(piece, allowed_special="all")
            else:
                ids += self._encoding.encode_ordinary(piece)
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the ids; control and unused tokens give their name. ArgumentError: unknown id."""
        parts = []
        for index in ids:
            if not isinstance(index, (int, np.integer)):
                raise ArgumentError(f"token id: found {index!r}, wanted an integer")
            if not 0 <= index < len(self._bytes):
                raise ArgumentError(f"token id: found {index}, wanted 0 .. {len(self._bytes) - 1}")
            parts.append(self._bytes[index])
        return b"".join(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def special_name(self, index: int) -> str | None:
        """The text of a control token; None for every other id."""
        return self._special_names.get(index)

    def special_id(self, name: str) -> int:
        """The id of a control token. ModelVocabularyError where the vocabulary has none of this name."""
        if name not in self.special_ids:
            raise ModelVocabularyError(f"control token: found none named {name!r} in the vocabulary")
        return self.special_ids[name]


def _token_bytes(index: int, token: str) -> bytes:
    try:
        data = bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError as error:
        raise ModelVocabularyError(
            f"token {index}: found {token!r} with {error.args[0]!r}, "
            "wanted only characters that stand for bytes"
        ) from None
    if not data:
        raise ModelVocabularyError(f"token {index}: found an empty normal token, wanted at least one byte")
    return data
