"""A synthetic vocabulary of Kimi's kind: all bytes, pairs of bytes, and the special tokens.

It has the form of a checkpoint's files, so that the converter's own reader makes the GGUF keys.
"""

from __future__ import annotations

import base64
import json
import tempfile
from itertools import islice, product
from pathlib import Path

from convert.header import Key
from convert.vocab import N_RESERVED, RANKS_NAME, tokenizer_keys

SPECIAL = ("[BOS]", "[EOS]", "<|end_of_msg|>")


def ranked_tokens(count: int) -> list[bytes]:
    """`count` tokens by rank: the 256 bytes, then pairs of bytes."""
    pairs = (bytes(pair) for pair in product(range(256), repeat=2))
    return [bytes([byte]) for byte in range(256)] + list(islice(pairs, count - 256))


def vocabulary_keys(n_vocab: int, is_k3: bool) -> list[Key]:
    """The `tokenizer.*` keys for `n_vocab` tokens, at least 512 (256 bytes and 256 special tokens)."""
    n_ranks = n_vocab - N_RESERVED
    if not 256 <= n_ranks <= 256 + 256**2:
        raise ValueError(f"vocabulary: found {n_vocab} tokens, wanted 512 .. {512 + 256**2}")
    names = {str(n_ranks + i): {"content": name} for i, name in enumerate(SPECIAL)}
    ids = {"bos_token_id": n_ranks, "eos_token_id": n_ranks + 2, "pad_token_id": n_vocab - 1}
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(ranked_tokens(n_ranks))]
        (Path(folder) / RANKS_NAME).write_text("".join(lines))
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": names}))
        return tokenizer_keys(Path(folder), ids, n_vocab, is_k3)
