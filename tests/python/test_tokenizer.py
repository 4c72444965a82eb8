"""tokenizer.py against the checkpoint's own files, the regex module, and properties of an encoding."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import regex
import tiktoken
from llama_k3.errors import ModelVocabularyError

from llama_k3 import ArgumentError, Tokenizer
from tests.python.vocabulary import byte_tokens, small_tokenizer

# The pattern that Kimi's tokenizer publishes.
PUBLISHED = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Letters of every case, Han in and out of the basic plane, marks, digits, white space, controls, emoji.
ALPHABET = (
    "aAbzZéÉñßİıſKΑωДдーカな한अǅʰ"
    "漢字々〆〇\U00020000\U0003134a⺀"
    "\u0301\u0903०१٣½²Ⅷ0123456789"
    " \t\n\r\u00a0\u2003\u3000\u2028\x85\x00\x1f\x7f\u200b\u200d\ufeff"
    '!?.,"’-_()[]{}<>|/\\@#$%^&*+=~`😀👍🏽\ue000'
    "'sS'tT'Re'VE'm'LL'd"
)


def random_texts(count: int, longest: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, longest))) for _ in range(count)]


def test_pieces_are_those_of_the_regex_module() -> None:
    texts = random_texts(4000, 24, seed=1)
    pattern = regex.compile("(?V1)" + PUBLISHED)
    pieces = [pattern.findall(text) for text in texts]
    # With every piece a token of its own, the ids spell the pieces: a wrong split shows in them.
    whole = {piece.encode() for text in pieces for piece in text if len(piece.encode()) > 1}
    tokenizer = small_tokenizer(sorted(whole), [], [])
    assert len(whole) > 5000
    for text, wanted in zip(texts, pieces, strict=True):
        found = [tokenizer.decode_bytes([index]).decode() for index in tokenizer.encode(text)]
        assert found == wanted


def test_ids_are_those_of_the_checkpoint(tokenizer: Tokenizer, ranks: dict[bytes, int]) -> None:
    reference = tiktoken.Encoding("reference", pat_str=PUBLISHED, mergeable_ranks=ranks, special_tokens={})
    texts = random_texts(300, 60, seed=2) + [
        "What is the weather in Paris?",
        "The code of the red box is 1234.",
    ]
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == reference.encode_ordinary(text)
        assert tokenizer.decode(ids) == text


def test_every_id_decodes(tokenizer: Tokenizer, ranks: dict[bytes, int], trained_checkpoint: Path) -> None:
    config = json.loads((trained_checkpoint / "tokenizer_config.json").read_text())
    names = {int(index): entry["content"] for index, entry in config["added_tokens_decoder"].items()}
    assert len(tokenizer) == len(ranks) + len(names)
    for data, rank in ranks.items():
        assert tokenizer.decode_bytes([rank]) == data
    for index, name in names.items():
        assert tokenizer.decode([index]) == name
        assert tokenizer.special_id(name) == index
        assert tokenizer.special_name(index) == name


def test_control_tokens_only_where_asked_for(tokenizer: Tokenizer) -> None:
    text = "a<|end_of_msg|>b"
    end = tokenizer.special_id("<|end_of_msg|>")
    assert tokenizer.encode(text, special=True) == [*tokenizer.encode("a"), end, *tokenizer.encode("b")]
    plain = tokenizer.encode(text)
    assert all(tokenizer.special_name(index) is None for index in plain)
    assert tokenizer.decode(plain) == text


def test_unused_tokens_decode_to_their_name_and_are_never_produced() -> None:
    tokenizer = small_tokenizer([], ["<|end_of_msg|>"], ["[PAD257]"])
    assert tokenizer.decode([257]) == "[PAD257]"
    assert tokenizer.encode("[PAD257]", special=True) == list(b"[PAD257]")


def test_end_tokens(tokenizer: Tokenizer) -> None:
    names = ("[EOS]", "<|end_of_msg|>", "[EOT]")
    assert tokenizer.end_ids == {tokenizer.special_id(name) for name in names}


@pytest.mark.parametrize(
    "unit",
    ["a", "A", "aA", " ", "\n", "\t ", "7", "漢", "!", "'", "\u0301", "😀", "aA1 !漢\n", " a", "\r\n "],
)
def test_time_is_linear(tokenizer: Tokenizer, unit: str) -> None:
    def seconds(length: int) -> float:
        text = (unit * length)[:length]
        start = time.perf_counter()
        ids = tokenizer.encode(text)
        elapsed = time.perf_counter() - start
        assert tokenizer.decode(ids) == text
        return elapsed

    seconds(1000)
    long = seconds(100_000)
    assert long < 1.0
    assert seconds(400_000) < 10 * max(long, 0.05)


def test_long_texts_are_cut_as_in_the_reference() -> None:
    """Runs after 25,000 characters, every text after 400,000: a pair across the cut is not merged."""
    tokenizer = small_tokenizer([b"aa", b"  ", b" a"], [], [])
    a, b, tab, space, aa, spaces, word = (*b"ab\t ", 256, 257, 258)
    assert tokenizer.encode("b" + "a" * 25_001) == [b, *[aa] * 12_499, a, aa]
    assert tokenizer.encode("\t" + " " * 25_000) == [tab, *[spaces] * 12_499, space, space]
    assert tokenizer.encode("a" + " a" * 200_001) == [a, *[word] * 199_999, space, a, word]


def test_surrogates(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")
    assert tokenizer.encode("\ud83d\ude00") == tokenizer.encode("😀")


def test_bytes_that_are_no_utf8(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é")
    assert tokenizer.decode_bytes(ids) == "é".encode()
    assert tokenizer.decode([0x41, 0xFF, 0x42]) == "A\ufffdB"


def test_nothing_is_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("index", [-1, 2**20])
def test_unknown_ids_are_refused(tokenizer: Tokenizer, index: int) -> None:
    with pytest.raises(ArgumentError, match=f"token id: found {index}, wanted 0 .. {len(tokenizer) - 1}"):
        tokenizer.decode([65, index])


@pytest.mark.parametrize("index", [1.0, "a", None])
def test_ids_have_to_be_integers(tokenizer: Tokenizer, index: Any) -> None:
    with pytest.raises(ArgumentError, match="token id: found .*, wanted an integer"):
        tokenizer.decode([65, index])


def test_text_has_to_be_str(tokenizer: Tokenizer) -> None:
    with pytest.raises(ArgumentError, match="text: found bytes, wanted str"):
        tokenizer.encode(b"abc")  # type: ignore[arg-type]


def test_vocabularies_that_do_not_fit() -> None:
    tokens = byte_tokens()
    with pytest.raises(ModelVocabularyError, match="token_type: found 2 entries, wanted 256"):
        Tokenizer(tokens, [1, 1])
    with pytest.raises(ModelVocabularyError, match="none for the byte 0xff"):
        Tokenizer(tokens[:255], [1] * 255)
    with pytest.raises(ModelVocabularyError, match="token 256: found the bytes of token 65 again"):
        Tokenizer([*tokens, "A"], [1] * 257)
    with pytest.raises(ModelVocabularyError, match="token 256: found '漢' with '漢'"):
        Tokenizer([*tokens, "漢"], [1] * 257)
    with pytest.raises(ModelVocabularyError, match="token 256: found an empty normal token"):
        Tokenizer([*tokens, ""], [1] * 257)


def test_metadata_of_another_tokenizer() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"}
    with pytest.raises(ModelVocabularyError, match="tokenizer.ggml.pre: found 'llama-bpe', wanted 'kimi-k2'"):
        Tokenizer.from_metadata(metadata)
    with pytest.raises(ModelVocabularyError, match="tokenizer.ggml.tokens: found NoneType, wanted a list"):
        Tokenizer.from_metadata({**metadata, "tokenizer.ggml.pre": "kimi-k2"})
