"""chat.py and the session behind the command: formats, incomplete characters, broken off answers."""

from __future__ import annotations

import pytest
from llama_k3.chat import K2Chat, K3Chat, chat_format
from llama_k3.cli.session import Session
from llama_k3.xtml import Delta, encode

from llama_k3 import Model, Sampler, Tokenizer
from tests.python.vocabulary import renamed

K2_NAMES = ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"]


def test_the_vocabulary_tells_the_format(tokenizer: Tokenizer) -> None:
    assert isinstance(chat_format(tokenizer), K3Chat)
    assert isinstance(chat_format(renamed(tokenizer, K2_NAMES)), K2Chat)
    assert chat_format(renamed(tokenizer, [])) is None


def test_turns_of_kimi_linear(tokenizer: Tokenizer) -> None:
    other = renamed(tokenizer, K2_NAMES)
    ids = encode(K2Chat().first() + K2Chat().turn("Hi <|im_end|>"), other)
    assert other.decode(ids) == (
        "<|im_user|>user<|im_middle|>Hi <|im_end|><|im_end|><|im_assistant|>assistant<|im_middle|>"
    )
    assert ids.count(other.special_id("<|im_end|>")) == 1


@pytest.mark.parametrize(("chat", "names"), [(K3Chat(), None), (K2Chat(), K2_NAMES)])
def test_incomplete_characters_are_held_back(
    tokenizer: Tokenizer, chat: K3Chat | K2Chat, names: list[str] | None
) -> None:
    reader = chat.reader(tokenizer if names is None else renamed(tokenizer, names))
    kind = "reasoning" if names is None else "content"
    assert [reader.feed(byte) for byte in "漢é".encode()] == [
        [],
        [],
        [Delta(kind, "漢")],  # type: ignore[arg-type]
        [],
        [Delta(kind, "é")],  # type: ignore[arg-type]
    ]


def test_a_broken_off_answer_is_ended_in_proper_form(model: Model, tokenizer: Tokenizer) -> None:
    with model.context(n_ctx=512) as context, Sampler(temperature=0, seed=1) as sampler:
        session = Session(context, tokenizer, sampler, n_predict=-1, ignore_eos=False)
        answer = session.ask("What is 12 + 7?")
        while next(answer).text != "7":
            pass
        answer.close()  # type: ignore[attr-defined]
        text = "".join(delta.text for delta in session.ask("What is 12 + 7?") if delta.kind == "content")
        assert text == "12 + 7 = 19."
        dialogue = tokenizer.decode(context.tokens())
    first_answer = dialogue.split('role="assistant"<|sep|>')[1]
    assert first_answer.startswith("<|open|>think<|sep|>")
    assert (
        '<|close|>think<|sep|><|close|>message<|sep|><|end_of_msg|><|open|>message role="user"'
        in first_answer
    )


def test_a_vocabulary_without_markers_continues_the_text(model: Model, tokenizer: Tokenizer) -> None:
    with model.context(n_ctx=64) as context, Sampler(temperature=0, seed=1) as sampler:
        session = Session(context, renamed(tokenizer, []), sampler, n_predict=4, ignore_eos=False)
        assert not session.is_chat
        shown = list(session.ask("The code of"))
        assert {delta.kind for delta in shown} == {"content"}
        assert context.position() == len(tokenizer.encode("The code of")) + 3
