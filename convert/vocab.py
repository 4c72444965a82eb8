"""Tokenizer keys from `tiktoken.model`, `tokenizer_config.json` and config.json.

The vocabulary is byte-level BPE by rank: the rank is the token's id. Ids after the ranks are special tokens;
the checkpoint's tokenizer reserves 256 of them and names those that have no name `<|reserved_token_N|>`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint import MAX_CONFIG_BYTES, load_json
from .config import Fields, text_fields
from .errors import MissingVocabError, SpecialTokenError, VocabError, VocabSizeError
from .header import Key, flag, i32s, text, texts, u32

RANKS_NAME = "tiktoken.model"
TEMPLATE_NAME = "chat_template.jinja"
OWN_TEMPLATE = Path(__file__).parent / "templates" / "kimi-k3.jinja"
MAX_RANKS_BYTES = 64 << 20
N_RESERVED = 256

NORMAL, CONTROL, UNUSED = 1, 3, 5


def tokenizer_keys(path: Path, config: Mapping[str, Any], n_vocab: int, is_k3: bool) -> list[Key]:
    """All `tokenizer.*` keys of the checkpoint folder `path`, for an embedding of `n_vocab` rows."""
    ranks = read_ranks(path / RANKS_NAME)
    settings: dict[str, Any] = {}
    if (path / "tokenizer_config.json").exists():
        settings = load_json(path / "tokenizer_config.json", MAX_CONFIG_BYTES)
    specials = special_tokens(settings, len(ranks), n_vocab)
    tokens, types = _token_list(ranks, specials, n_vocab)
    keys = [
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "kimi-k2"),
        texts("tokenizer.ggml.tokens", tokens),
        i32s("tokenizer.ggml.token_type", types),
        texts("tokenizer.ggml.merges", merges_of_ranks(ranks)),
    ]
    keys += _special_id_keys(path, config, settings, specials, n_vocab)
    template = _chat_template(path, settings, is_k3)
    if template is not None:
        keys.append(text("tokenizer.chat_template", template))
    return keys


def read_ranks(path: Path) -> dict[bytes, int]:
    """`tiktoken.model`: one line per token, base64 of its bytes and its rank; ranks are 0, 1, 2, ..."""
    if not path.exists():
        raise MissingVocabError(path.name, wanted="the tokenizer's ranks beside the weights")
    if path.stat().st_size > MAX_RANKS_BYTES:
        raise VocabError(path.name, found=f"{path.stat().st_size} bytes", wanted=f"at most {MAX_RANKS_BYTES}")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, rank_text = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(rank_text)
        except (ValueError, binascii.Error):
            raise VocabError(
                f"{path.name} line {number}", found=repr(line[:40]), wanted="base64 and a rank"
            ) from None
        if rank != len(ranks):
            raise VocabError(f"{path.name} line {number}: rank", found=rank, wanted=len(ranks))
        if not token or token in ranks:
            raise VocabError(f"{path.name} line {number}: token {token!r} is empty or listed twice")
        ranks[token] = rank
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise VocabError(f"{path.name}: no token for byte {missing[0]}", found=256 - len(missing), wanted=256)
    return ranks


def special_tokens(settings: Mapping[str, Any], n_ranks: int, n_vocab: int) -> dict[int, str]:
    """Names of the special ids: those of tokenizer_config.json, placeholders for the other reserved ids."""
    if n_ranks > n_vocab:
        raise VocabSizeError(f"{RANKS_NAME}", found=f"{n_ranks} tokens", wanted=f"at most {n_vocab}")
    named = settings.get("added_tokens_decoder", {})
    if not isinstance(named, dict):
        raise SpecialTokenError("added_tokens_decoder", found=type(named).__name__, wanted="an object")
    last = min(n_ranks + N_RESERVED, n_vocab)
    specials = {token_id: f"<|reserved_token_{token_id}|>" for token_id in range(n_ranks, last)}
    for key, entry in named.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not key.isdecimal() or not isinstance(content, str) or not content or not _is_unicode(content):
            raise SpecialTokenError(f"added_tokens_decoder[{key[:20]!r}]", wanted="an id and its content")
        token_id = int(key[:20])
        if token_id >= n_vocab:
            raise VocabSizeError(f"{content!r}", found=f"id {token_id}", wanted=f"below {n_vocab} rows")
        if token_id < n_ranks:
            raise SpecialTokenError(f"{content!r}", found=f"id {token_id}", wanted=f"{n_ranks} or more")
        specials[token_id] = content
    names = list(specials.values())
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise SpecialTokenError(f"{repeated!r} names two ids")
    return specials


def merges_of_ranks(ranks: Mapping[bytes, int]) -> list[str]:
    """For each token of two bytes or more, the two parts that rank BPE joins last to make it."""
    letters = byte_letters()
    merges = []
    for token, rank in ranks.items():
        parts = _last_parts(token, rank, ranks)
        if len(parts) == 2:
            merges.append(" ".join(part.decode("latin-1").translate(letters) for part in parts))
    return merges


def _last_parts(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The parts of `token` after all merges that rank below it; two for a token that a merge makes."""
    parts = [token[i : i + 1] for i in range(len(token))]
    pairs = [ranks.get(token[i : i + 2], rank) for i in range(len(token) - 1)]
    while len(parts) > 2 and (lowest := min(pairs)) < rank:
        at = pairs.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del pairs[at]
        if at < len(pairs):
            pairs[at] = ranks.get(parts[at] + parts[at + 1], rank)
        if at > 0:
            pairs[at - 1] = ranks.get(parts[at - 1] + parts[at], rank)
    return parts


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for every byte: visible Latin-1 stays, the rest moves up from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in visible}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(0x100 + len(letters) - len(visible))
    return letters


def _is_unicode(value: str) -> bool:
    """Whether a string has no lone surrogates, which JSON may hold and UTF-8 may not."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _token_list(
    ranks: Mapping[bytes, int], specials: Mapping[int, str], n_vocab: int
) -> tuple[list[str], list[int]]:
    """Texts and types of all ids; ids that nothing names are unused padding."""
    letters = byte_letters()
    tokens = [token.decode("latin-1").translate(letters) for token in ranks]
    types = [NORMAL] * len(tokens)
    for token_id in range(len(tokens), n_vocab):
        named = token_id in specials
        tokens.append(specials[token_id] if named else f"[PAD{token_id}]")
        types.append(CONTROL if named else UNUSED)
    return tokens, types


def _special_id_keys(
    path: Path,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    specials: Mapping[int, str],
    n_vocab: int,
) -> list[Key]:
    """Ids of the tokens with a role.

    The end of text is config.json's, which ends a turn; the tokenizer's own `[EOS]` ends a document, and with
    it generation would run past the end of the answer.
    """
    keys = []
    fields = [Fields(dict(config), ""), text_fields(config)]
    if (path / "generation_config.json").exists():
        values = load_json(path / "generation_config.json", MAX_CONFIG_BYTES)
        fields.append(Fields(values, "generation_config"))
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        owner = next((owner for owner in fields if owner.present(f"{role}_token_id")), None)
        if owner is None:
            if role == "pad":
                continue
            raise SpecialTokenError(f"{role}_token_id", found="nothing", wanted="an id in config.json")
        keys += _role_keys(owner, f"{role}_token_id", key, n_vocab)
    ids = {name: token_id for token_id, name in specials.items()}
    for role, key in (("unk", "unknown"), ("sep", "seperator"), ("cls", "cls"), ("mask", "mask")):
        name = settings.get(f"{role}_token")
        name = name.get("content") if isinstance(name, dict) else name
        if isinstance(name, str) and name in ids:
            keys.append(u32(f"tokenizer.ggml.{key}_token_id", ids[name]))
    if isinstance(settings.get("add_bos_token"), bool):
        keys.append(flag("tokenizer.ggml.add_bos_token", settings["add_bos_token"]))
    return keys


def _role_keys(owner: Fields, name: str, key: str, n_vocab: int) -> list[Key]:
    """One id; for the end of text up to two, the second as end of turn."""
    value = owner.get(name)
    ids = value if isinstance(value, list) else [value]
    if not 1 <= len(ids) <= (2 if key == "eos" else 1):
        raise SpecialTokenError(owner.path(name), found=f"{len(ids)} ids", wanted="one id")
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < n_vocab:
            raise SpecialTokenError(
                owner.path(name), found=repr(token_id)[:40], wanted=f"an id below {n_vocab}"
            )
    names = (f"tokenizer.ggml.{key}_token_id", "tokenizer.ggml.eot_token_id")
    return [u32(key_name, token_id) for key_name, token_id in zip(names, ids, strict=False)]


def _chat_template(path: Path, settings: Mapping[str, Any], is_k3: bool) -> str | None:
    """The checkpoint's own template; Kimi-K3 ships none and gets the bundled one."""
    template = settings.get("chat_template")
    if (path / TEMPLATE_NAME).exists():
        template = (path / TEMPLATE_NAME).read_bytes().decode("utf-8", "surrogateescape")
    if isinstance(template, str):
        if not _is_unicode(template):
            raise VocabError("the chat template", found="bytes that are not UTF-8", wanted="text")
        return template
    return OWN_TEMPLATE.read_text(encoding="utf-8") if is_k3 else None
