"""Byte-level rank BPE: training on the dialogues, the `tiktoken.model` file, and K3's pre-tokeniser."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import regex
import tiktoken
from llama_k3.tokenizer import PATTERN

from .config import BASE_RANKS, SPECIAL_TOKENS, VOCAB_SIZE

_DIGITS = frozenset(b"0123456789")


def train_ranks(texts: Iterable[str], size: int = BASE_RANKS) -> dict[bytes, int]:
    """Ranks of 256 bytes and the `size` - 256 most useful merges. Digits stay single, so sums can be learnt.

    Ties go to the greater byte string. Raises ValueError when the texts have too few distinct pairs.
    """
    splitter = regex.compile("(?V1)" + PATTERN)
    counts: Counter[bytes] = Counter()
    for text in texts:
        counts.update(word.encode() for word in splitter.findall(text))
    words = [([bytes([byte]) for byte in word], count) for word, count in counts.items()]
    ranks = {bytes([byte]): byte for byte in range(256)}
    while len(ranks) < size:
        pairs: Counter[bytes] = Counter()
        for parts, count in words:
            for left, right in zip(parts, parts[1:], strict=False):
                pairs[left + right] += count
        usable = [(n, pair) for pair, n in pairs.items() if pair not in ranks and not _DIGITS & set(pair)]
        if not usable:
            raise ValueError(f"BPE training: texts give {len(ranks)} ranks, want {size}")
        merged = max(usable)[1]
        ranks[merged] = len(ranks)
        words = [(_merge(parts, merged), count) for parts, count in words]
    return ranks


def _merge(parts: list[bytes], merged: bytes) -> list[bytes]:
    """Join every adjacent pair of `parts` that spells `merged`, left to right."""
    result: list[bytes] = []
    position = 0
    while position < len(parts):
        if position + 1 < len(parts) and parts[position] + parts[position + 1] == merged:
            result.append(merged)
            position += 2
        else:
            result.append(parts[position])
            position += 1
    return result


def save_ranks(ranks: dict[bytes, int], path: Path) -> None:
    """Write `tiktoken.model`: base64 token, space, rank; one per line in rank order."""
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    path.write_text("".join(lines), encoding="ascii")


def load_ranks(path: Path) -> dict[bytes, int]:
    """Read `tiktoken.model`."""
    pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def special_names() -> dict[int, str]:
    """Every special id with its text; ids without a name of their own are reserved."""
    named = {token_id: name for name, token_id in SPECIAL_TOKENS.items()}
    return {i: named.get(i, f"<|reserved_token_{i}|>") for i in range(BASE_RANKS, VOCAB_SIZE)}


def tokenizer_config() -> dict[str, object]:
    """The contents of tokenizer_config.json."""
    added = {str(i): {"content": name, "special": True} for i, name in special_names().items()}
    return {
        "tokenizer_class": "TikTokenTokenizer",
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "added_tokens_decoder": added,
    }


class Tokenizer:
    """tiktoken with the tiny vocabulary."""

    def __init__(self, ranks: dict[bytes, int]) -> None:
        if sorted(ranks.values()) != list(range(BASE_RANKS)):
            raise ValueError(f"tokenizer: found {len(ranks)} ranks, want 0..{BASE_RANKS - 1} once each")
        self.ranks = ranks
        special = {name: token_id for token_id, name in special_names().items()}
        self._encoding = tiktoken.Encoding(
            "tiny-k3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special
        )

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """The tokenizer of a checkpoint directory."""
        return cls(load_ranks(directory / "tiktoken.model"))

    def save(self, directory: Path) -> None:
        """Write tiktoken.model and tokenizer_config.json."""
        save_ranks(self.ranks, directory / "tiktoken.model")
        text = json.dumps(tokenizer_config(), indent=0)
        (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Ordinary tokens only: text that looks like a special token is spelled out."""
        return self._encoding.encode_ordinary(text)

    def decode(self, ids: list[int]) -> str:
        """Text with special tokens by name."""
        return self._encoding.decode(ids)
