"""chat.py and the session behind the command: formats, incomplete characters, broken off answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_k3.chat import K2Chat, K3Chat, chat_format
from llama_k3.cli.session import ChatSession, Generator, SessionOptions, TextSession, open_session
from llama_k3.errors import ModelVocabularyError
from llama_k3.generate import generate_tokens
from llama_k3.xtml import Delta, Segment, ToolCall, encode, text_of

from llama_k3 import ArgumentError, Model, Sampler, Tokenizer, k2
from tests.python.vocabulary import renamed, small_tokenizer

K2_NAMES = ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"]
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "b": 1, "a": 2}},
}
CALLS = [
    {"id": "abc", "function": {"name": "get_weather", "arguments": '{"city":"Paris", "days":1e0}'}},
    {"id": "def", "function": {"name": "add", "arguments": {"a": 1}}},
]
DIALOGUE: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "Weather?", "name": "Ada"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "def", "content": "3"},
    {"role": "tool", "tool_call_id": "abc", "content": "sunny"},
    {
        "role": "assistant",
        "content": "Sunny.",
        "tool_calls": [{"function": {"name": "add", "arguments": ""}}],
    },
]
K2_OUTPUT = (
    "Let me look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.add:1'
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
)


def test_the_vocabulary_tells_the_format(tokenizer: Tokenizer) -> None:
    assert isinstance(chat_format(tokenizer), K3Chat)
    assert isinstance(chat_format(renamed(tokenizer, K2_NAMES)), K2Chat)
    assert chat_format(renamed(tokenizer, [])) is None
    assert isinstance(chat_format(tokenizer, "{{ broken"), K3Chat)


def test_what_a_model_opens_and_whether_it_thinks() -> None:
    assert K3Chat.supports_thinking and not K2Chat.supports_thinking
    assert (K3Chat().opened(), K3Chat().opened(False), K2Chat().opened()) == ("think", "response", None)


def test_turns_of_kimi_linear(tokenizer: Tokenizer) -> None:
    other = renamed(tokenizer, K2_NAMES)
    ids = encode(K2Chat().render([{"role": "user", "content": "Hi <|im_end|>"}]), other)
    assert other.decode(ids) == (
        "<|im_user|>user<|im_middle|>Hi <|im_end|><|im_end|><|im_assistant|>assistant<|im_middle|>"
    )
    assert ids.count(other.special_id("<|im_end|>")) == 1


def test_a_whole_dialogue_of_kimi_linear() -> None:
    """Ids that carry no function's name are replaced; arguments keep their bytes."""
    text = text_of(K2Chat().render(DIALOGUE, [WEATHER]))
    assert text == (
        '<|im_system|>tool_declare<|im_middle|>[{"function":{"name":"get_weather","parameters":'
        '{"a":2,"b":1,"type":"object"}},"type":"function"}]<|im_end|>'
        "<|im_system|>system<|im_middle|>Be kind.<|im_end|><|im_user|>Ada<|im_middle|>Weather?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city":"Paris", "days":1e0}<|tool_call_end|><|tool_call_begin|>functions.add:1'
        '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
        "<|im_system|>get_weather<|im_middle|>## Return of functions.get_weather:0\nsunny<|im_end|>"
        "<|im_system|>add<|im_middle|>## Return of functions.add:1\n3<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>Sunny.<|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.add:2<|tool_call_argument_begin|><|tool_call_end|>"
        "<|tool_calls_section_end|><|im_end|><|im_assistant|>assistant<|im_middle|>"
    )


def test_ids_of_the_proper_form_stay() -> None:
    call = {"id": "functions.add:7", "function": {"name": "add", "arguments": "{}"}}
    text = text_of(K2Chat().render([{"role": "assistant", "tool_calls": [call]}]))
    assert "<|tool_call_begin|>functions.add:7<|tool_call_argument_begin|>{}<|tool_call_end|>" in text


def test_tool_choice_and_effort_of_kimi_linear() -> None:
    user = [{"role": "user", "content": "x"}]
    assert "tool_declare" not in text_of(K2Chat().render(user, [WEATHER], tool_choice="none"))
    assert "tool_declare" in text_of(K2Chat().render(user, [WEATHER], tool_choice="required"))
    with pytest.raises(ArgumentError, match="effort: found 'low', wanted none: the model does not think"):
        K2Chat().render(user, effort="low")
    with pytest.raises(ArgumentError, match="response_format.type: found 'xml'"):
        K2Chat().render(user, response_format={"type": "xml"})


def test_tool_calls_of_kimi_linear() -> None:
    parser = k2.StreamParser()
    deltas = parser.feed(K2_OUTPUT)
    message = parser.close()
    assert message.content == "Let me look."
    assert message.tool_calls == [ToolCall("get_weather", 1, '{"city": "Paris"}'), ToolCall("add", 2, "{}")]
    assert [delta.kind for delta in deltas] == ["content", "call", "arguments", "call", "arguments"]


@pytest.mark.parametrize(
    ("output", "content", "calls"),
    [
        ("text<|im_end|>", "text", []),
        ("text<|im_end|> and more<|im_user|>", "text", []),
        ("<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}", "", [("f", "{}")]),
        (
            "<|tool_call_begin|>functions.a.b:12<|tool_call_argument_begin|><|tool_call_end|>",
            "",
            [("a.b", "{}")],
        ),
        ("<|tool_call_begin|>\nfunctions.f:0\n<|tool_call_argument_begin|>{<|im_end|>", "", [("f", "{")]),
        ('<|tool_call_begin|>functions.f:0{"a":1}<|tool_call_end|>x', "x", [("f", '{"a":1}')]),
        ("<|tool_call_begin|>f<|tool_call_begin|>g<|tool_call_end|>", "", [("f", "{}"), ("g", "{}")]),
        ("<|tool_calls_section_begin|> x <|tool_calls_section_end|>y", "y", []),
        ("<|tool_call_argument_begin|>a<|tool_call_end|>b<|tool_calls_section_end|>", "ab", []),
        ("<|tool_call_begin|>f<|tool_call_argument_begin|>a<|tool_call_argument_begin|>b", "", [("f", "ab")]),
    ],
)
def test_broken_answers_of_kimi_linear(output: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([output], list(output)):
        parser = k2.StreamParser()
        for piece in pieces:
            parser.feed(piece)
        message = parser.close()
        assert message.content == content
        assert [(call.name, call.arguments) for call in message.tool_calls] == calls


@pytest.mark.parametrize(("chat", "names"), [(K3Chat(), None), (K2Chat(), K2_NAMES)])
def test_incomplete_characters_are_held_back(
    tokenizer: Tokenizer, chat: K3Chat | K2Chat, names: list[str] | None
) -> None:
    reader = chat.reader(tokenizer if names is None else renamed(tokenizer, names), chat.opened())
    kind = "reasoning" if names is None else "content"
    assert [reader.feed(byte) for byte in "漢é".encode()] == [
        [],
        [],
        [Delta(kind, "漢")],  # type: ignore[arg-type]
        [],
        [Delta(kind, "é")],  # type: ignore[arg-type]
    ]


def test_characters_that_never_become_whole(tokenizer: Tokenizer) -> None:
    """Before a control token and at the end, held back bytes count as one U+FFFD."""
    reader = K3Chat().reader(tokenizer, "think")
    first, second = "漢".encode()[:2]
    assert reader.feed(first) == reader.feed(second) == []
    assert reader.feed(tokenizer.special_id("<|close|>")) == [Delta("reasoning", "\ufffd")]
    for token in [*tokenizer.encode("think"), tokenizer.special_id("<|sep|>")]:
        reader.feed(token)
    reader.feed(first)
    assert reader.flush() == [Delta("content", "\ufffd")]
    assert (reader.close().reasoning, reader.close().content) == ("\ufffd", "\ufffd")


def test_control_tokens_are_decoded_byte_by_byte(tokenizer: Tokenizer) -> None:
    """No spaces around them, which would hide the calls."""
    text = '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == text


def test_every_id_can_be_read(tokenizer: Tokenizer) -> None:
    """Ids without a name of their own too."""
    unnamed = small_tokenizer([], ["<|im_end|>"], ["<|reserved|>"])
    for vocabulary in (tokenizer, unnamed):
        reader = K3Chat().reader(vocabulary, "response")
        for token in range(len(vocabulary)):
            reader.feed(token)
        reader.close()


def test_the_reader_counts_channels_and_closes_thinking(tokenizer: Tokenizer) -> None:
    reader = K3Chat().reader(tokenizer, "think")
    for token in tokenizer.encode("thinking"):
        assert reader.channel == "reasoning"
        reader.feed(token)
    forced = reader.close_thinking(tokenizer)
    closed = [Segment("control", "<|close|>"), Segment("text", "think"), Segment("control", "<|sep|>")]
    opened = [Segment("control", "<|open|>"), Segment("text", "response"), Segment("control", "<|sep|>")]
    assert forced == encode(closed + opened, tokenizer)
    for token in forced:
        assert reader.feed(token) == []
    assert reader.channel == "content"
    assert reader.close_thinking(tokenizer) == []
    assert K2Chat().reader(tokenizer, None).close_thinking(tokenizer) == []


def test_control_tokens_that_a_vocabulary_lacks(tokenizer: Tokenizer) -> None:
    segments = K2Chat().render([{"role": "system", "content": "x"}])
    with pytest.raises(ModelVocabularyError, match="found none named '<|im_system|>'"):
        encode(segments, renamed(tokenizer, K2_NAMES))


def test_the_model_calls_a_tool(model: Model, tokenizer: Tokenizer) -> None:
    """The trained model, greedy: a prompt of ours makes a call, and its result an answer."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Name of the city."}},
                "required": ["city"],
            },
        },
    }
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    chat = K3Chat()
    with model.context(n_ctx=1024) as context, Sampler(temperature=0, seed=1) as sampler:
        message = answer(chat, context, sampler, tokenizer, messages, tool)
        assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
            ("get_weather", {"city": "Paris"})
        ]
        call = message.tool_calls[0]
        messages += [
            {
                "role": "assistant",
                "reasoning_content": message.reasoning,
                "content": message.content,
                "tool_calls": [{"id": "x", "function": {"name": call.name, "arguments": call.arguments}}],
            },
            {"role": "tool", "tool_call_id": "x", "content": "sunny, 20 degrees"},
        ]
        told = answer(chat, context, sampler, tokenizer, messages, tool)
    assert told.tool_calls == []
    assert "sunny" in told.content


def answer(
    chat: K3Chat, context: Any, sampler: Sampler, tokenizer: Tokenizer, messages: Any, tool: Any
) -> Any:
    ids = encode(chat.render(messages, [tool]), tokenizer)
    known = context.tokens()
    assert ids[: len(known)] == list(known), "a further turn goes on from what the model wrote"
    reader = chat.reader(tokenizer, chat.opened())
    for token in generate_tokens(context, ids[len(known) :], sampler):
        reader.feed(token)
        if token in tokenizer.end_ids:
            break
    return reader.close()


def test_a_broken_off_answer_stays_as_far_as_it_came(model: Model, tokenizer: Tokenizer) -> None:
    """Sent back, it is a whole message, so that the dialogue can go on."""
    options = SessionOptions()
    with model.context(n_ctx=512) as context, Sampler(temperature=0, seed=1) as sampler:
        session = ChatSession(Generator(context, tokenizer, sampler, options), K3Chat(), options)
        reply = session.ask("What is 12 + 7?")
        while next(reply).text != "7":
            pass
        reply.close()  # type: ignore[attr-defined]
        text = "".join(delta.text for delta in session.ask("What is 12 + 7?") if delta.kind == "content")
        assert text == "12 + 7 = 19."
        dialogue = tokenizer.decode(context.tokens())
    first_answer = dialogue.split('role="assistant"<|sep|>')[1]
    assert first_answer.startswith("<|open|>think<|sep|>")
    assert (
        "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|close|>message<|sep|>"
        '<|end_of_msg|><|open|>message role="user"'
    ) in first_answer


def test_a_vocabulary_without_markers_continues_the_text(model: Model, tokenizer: Tokenizer) -> None:
    options = SessionOptions(n_predict=4)
    with model.context(n_ctx=64) as context, Sampler(temperature=0, seed=1) as sampler:
        plain = renamed(tokenizer, [])
        session = open_session(Generator(context, plain, sampler, options), None, options)
        assert isinstance(session, TextSession)
        shown = list(session.ask("The code of"))
        assert {delta.kind for delta in shown} == {"content"}
        assert context.position() == len(tokenizer.encode("The code of")) + 3
