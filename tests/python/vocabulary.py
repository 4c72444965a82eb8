"""Vocabularies for tests: tokens in a GGUF's printable form, written from GPT-2's published byte table."""

from __future__ import annotations

from llama_k3 import Tokenizer

_SAME = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _SAME]


def gguf_token(data: bytes) -> str:
    """Printable Latin-1 bytes as they are, the others as U+0100 and up, in order."""
    return "".join(chr(byte if byte in _SAME else 0x100 + _OTHERS.index(byte)) for byte in data)


def byte_tokens() -> list[str]:
    return [gguf_token(bytes([byte])) for byte in range(256)]


def small_tokenizer(extra: list[bytes], control: list[str], unused: list[str]) -> Tokenizer:
    """256 bytes, then tokens of several bytes, control tokens and unused ones."""
    normal = byte_tokens() + [gguf_token(data) for data in extra]
    types = [1] * len(normal) + [3] * len(control) + [5] * len(unused)
    return Tokenizer([*normal, *control, *unused], types)


def renamed(tokenizer: Tokenizer, names: list[str]) -> Tokenizer:
    """The shipped model's vocabulary with `names` in the places of XTML's control tokens."""
    normal = [index for index in range(len(tokenizer)) if tokenizer.special_name(index) is None]
    tokens = [gguf_token(tokenizer.decode_bytes([index])) for index in normal]
    special = [f"<|special {index}|>" for index in range(len(normal), len(tokenizer))]
    special[2 : 2 + len(names)] = names
    return Tokenizer([*tokens, *special], [1] * len(tokens) + [3] * len(special))
