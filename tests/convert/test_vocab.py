"""The tokenizer's keys: tokens, types, merges, ids of the roles, chat template."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pytest
import tiktoken

from convert.errors import SpecialTokenError
from convert.vocab import byte_letters, merges_of_ranks, read_ranks, special_tokens, tokenizer_keys
from tests.convert.small_checkpoint import EOM, EOS, MERGED, N_RANKS, PAD, VOCAB, small_k3, small_linear

TINY = Path(__file__).resolve().parent.parent / "data" / "tiny-k3"
TEMPLATE = Path(__file__).resolve().parent.parent.parent / "convert" / "templates" / "kimi-k3.jinja"


def keys_of(folder: Path, config: dict[str, Any], is_k3: bool = True) -> dict[str, Any]:
    return {key.name: key.value for key in tokenizer_keys(folder, config, VOCAB, is_k3)}


def test_byte_letters() -> None:
    """One letter per byte, printable, the known ones of GPT-2's table."""
    letters = byte_letters()
    assert len(set(letters.values())) == 256 and all(letter.isprintable() for letter in letters.values())
    assert [letters[byte] for byte in (0x20, 0x0A, 0x41, 0x00, 0xAD, 0xFF)] == ["Ġ", "Ċ", "A", "Ā", "Ń", "ÿ"]


def test_small_vocabulary(tmp_path: Path) -> None:
    small = small_k3()
    keys = keys_of(small.write(tmp_path), small.config)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == VOCAB
    assert tokens[256:N_RANKS] == ["ab", "cd", "abcd", "Ġa"]
    assert tokens[EOM] == "<|end_of_msg|>" and tokens[EOM + 1] == f"<|reserved_token_{EOM + 1}|>"
    assert types == [1] * N_RANKS + [3] * (VOCAB - N_RANKS)
    assert keys["tokenizer.ggml.merges"] == ["a b", "c d", "ab cd", "Ġ a"]
    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]) == ("gpt2", "kimi-k2")


def test_end_of_turn_is_the_end_of_text(tmp_path: Path) -> None:
    """The tokenizer's own [EOS] ends a document; with it an answer would never stop."""
    small = small_k3()
    assert small.tokenizer["eos_token"] == "[EOS]"
    keys = keys_of(small.write(tmp_path), small.config)
    assert keys["tokenizer.ggml.eos_token_id"] == EOM != EOS
    assert keys["tokenizer.ggml.padding_token_id"] == PAD


def test_two_ends_of_text(tmp_path: Path) -> None:
    small = small_linear()
    small.config["eos_token_id"] = [EOM, EOS]
    keys = keys_of(small.write(tmp_path), small.config, is_k3=False)
    assert (keys["tokenizer.ggml.eos_token_id"], keys["tokenizer.ggml.eot_token_id"]) == (EOM, EOS)


def test_reserved_ids_end_after_256() -> None:
    """Ids that neither the ranks nor the reserved ids cover are padding."""
    specials = special_tokens({}, 1000, 1300)
    assert list(specials) == list(range(1000, 1256))


def test_padding_tokens_are_unused(tmp_path: Path) -> None:
    small = small_k3()
    keys = {key.name: key.value for key in tokenizer_keys(small.write(tmp_path), small.config, 700, True)}
    assert keys["tokenizer.ggml.tokens"][N_RANKS + 256 :] == [f"[PAD{i}]" for i in range(N_RANKS + 256, 700)]
    assert keys["tokenizer.ggml.token_type"][-1] == 5


def test_merges_follow_tiktoken() -> None:
    """Encoding a token with the lower ranks only leaves the two parts that the merge joins."""
    ranks = read_ranks(TINY / "tiktoken.model")
    merges = iter(merges_of_ranks(ranks))
    letters = byte_letters()
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        lower = {other: number for other, number in ranks.items() if number < rank}
        encoding = tiktoken.Encoding("lower", pat_str=r"(?s:.+)", mergeable_ranks=lower, special_tokens={})
        parts = [encoding.decode_single_token_bytes(part) for part in encoding._encode_single_piece(token)]
        assert len(parts) == 2
        assert next(merges) == " ".join(part.decode("latin-1").translate(letters) for part in parts)
    assert next(merges, None) is None


def test_tokens_that_no_merge_makes_have_none() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"abc": 256}
    assert merges_of_ranks(ranks) == []


def test_own_template_of_the_checkpoint_wins(tmp_path: Path) -> None:
    small = small_k3()
    small.tokenizer["chat_template"] = "one"
    assert keys_of(small.write(tmp_path), small.config)["tokenizer.chat_template"] == "one"
    (tmp_path / "chat_template.jinja").write_text("two")
    assert keys_of(tmp_path, small.config)["tokenizer.chat_template"] == "two"


def test_templates_by_default(tmp_path: Path) -> None:
    """Kimi-K3 ships none and gets the bundled one; Kimi-Linear gets none."""
    small = small_k3()
    folder = small.write(tmp_path)
    assert keys_of(folder, small.config)["tokenizer.chat_template"] == TEMPLATE.read_text()
    assert "tokenizer.chat_template" not in keys_of(folder, small.config, is_k3=False)


def test_missing_end_of_text(tmp_path: Path) -> None:
    small = small_k3()
    del small.config["eos_token_id"]
    with pytest.raises(SpecialTokenError, match="eos_token_id"):
        keys_of(small.write(tmp_path), small.config)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 261}')
    assert keys_of(tmp_path, small.config)["tokenizer.ggml.eos_token_id"] == 261
    assert len(MERGED) == N_RANKS - 256


def render(**values: Any) -> str:
    """The bundled template as chat front ends run it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text()).render(**values)


def test_template_plain_chat() -> None:
    text = render(
        messages=[{"role": "user", "content": 'a "b" & <c>\n'}], thinking=False, add_generation_prompt=True
    )
    assert text == (
        '<|open|>message role="user"<|sep|>a "b" & <c>\n<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'
    )


def test_template_thinking_and_tools() -> None:
    calls = [
        {
            "id": "x",
            "function": {"name": "w", "arguments": {"city": "O&A", "n": 2, "deep": True, "none": None}},
        },
        {"id": "y", "function": {"name": 'v"', "arguments": '{"raw": 1}'}},
    ]
    messages = [
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "y", "content": "second"},
        {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "first"}]},
    ]
    text = render(
        messages=messages, tools=[{"b": 1, "a": "é"}], thinking_effort="low", add_generation_prompt=True
    )
    message, end = "<|open|>message role=", "<|close|>message<|sep|><|end_of_msg|>"
    argument = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'
    wanted = [
        f'{message}"system" type="tool-declare"<|sep|># Tools\nHere are the available tools, '
        f'described in JSONSchema.\n\n```json\n[{{"a":"é","b":1}}]\n```{end}',
        f'{message}"system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in '
        "your thinking channel (not including the response channel), supported values include `low`, "
        f"`medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=low`.{end}",
        f'{message}"assistant"<|sep|><|open|>think<|sep|>hm<|close|>think<|sep|>'
        "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>",
        '<|open|>call tool="w" index="1"<|sep|>',
        argument.format("city", "string", "O&A"),
        argument.format("n", "number", "2"),
        argument.format("deep", "boolean", "true"),
        argument.format("none", "null", "null"),
        '<|close|>call<|sep|><|open|>call tool="v&quot;" index="2"<|sep|><|open|>json type="object"<|sep|>'
        '{"raw": 1}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>' + end,
        f'{message}"tool" tool="w" index="1"<|sep|>first{end}',
        f'{message}"tool" tool="v&quot;" index="2"<|sep|>second{end}',
        f'{message}"assistant"<|sep|><|open|>think<|sep|>',
    ]
    assert text == "".join(wanted)


def test_template_results_without_ids_keep_their_order() -> None:
    messages = [
        {"role": "tool", "name": "b", "content": "1"},
        {"role": "tool", "name": "a", "content": "2"},
    ]
    text = render(messages=messages, thinking=False)
    assert text.index('tool="b" index="1"') < text.index('tool="a" index="2"')
