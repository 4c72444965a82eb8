"""xtml.StreamParser: whole and broken answers, in any cut, with nothing of the markup in what is shown."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from llama_k3.xtml import Delta, Segment, StreamParser, ToolCall, parse, render, text_of

from llama_k3 import Tokenizer, xtml
from scripts.fuzz_xtml import read

OUTPUT = (
    "I think.<|close|>think<|sep|><|open|>response<|sep|>Hello &amp; <b>.<|close|>response<|sep|>"
    '<|open|>tools<|sep|><|open|>call tool="f&quot;" index="1"<|sep|>'
    '<|open|>argument key="c" type="string"<|sep|>Par"is<|close|>argument<|sep|>'
    '<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="h" index="3"<|sep|><|open|>json type="object"<|sep|>{"a": [1, 2]}<|close|>json<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)
WHOLE = xtml.Message(
    "I think.",
    "Hello &amp; <b>.",
    [
        ToolCall('f"', 1, '{"c": "Par\\"is", "n": 3}'),
        ToolCall("g", 2, "{}"),
        ToolCall("h", 3, '{"a": [1, 2]}'),
    ],
)


def call_with(*arguments: str) -> str:
    body = "".join(f"<|open|>{argument}<|close|>argument<|sep|>" for argument in arguments)
    return f'<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>{body}<|close|>call<|sep|>'


def test_parses_a_whole_answer() -> None:
    assert parse(OUTPUT, "think") == WHOLE


def test_no_cut_changes_the_answer() -> None:
    draw = random.Random(3)
    cuts = [[i] for i in range(len(OUTPUT))] + [
        sorted(draw.sample(range(len(OUTPUT)), 30)) for _ in range(200)
    ]
    for cut in [*cuts, list(range(len(OUTPUT)))]:
        pieces = [OUTPUT[start:end] for start, end in zip([0, *cut], [*cut, len(OUTPUT)], strict=True)]
        assert read(StreamParser("think"), pieces)[0] == WHOLE


def test_marker_text_in_a_text_segment_is_text() -> None:
    parser = StreamParser("response")
    assert parser.feed(Segment("text", "write <|close|> so")) == [Delta("content", "write <|close|> so")]
    parser.feed(Segment("control", "<|close|>"))
    parser.feed(Segment("text", "response"))
    parser.feed(Segment("control", "<|sep|>"))
    assert parser.close().content == "write <|close|> so"


@pytest.mark.parametrize(
    ("output", "opened", "reasoning", "content"),
    [
        ("only thinking", "think", "only thinking", ""),
        ("think<|open|>response<|sep|>answer", "think", "think", "answer"),
        ("a<|close|>response<|sep|>b", "think", "ab", ""),
        ("t<|close|>think<|sep|>no response tag", "think", "t", "no response tag"),
        ("plain", None, "", "plain"),
        ("a<|sep|>b<|close|><|close|>x<|sep|>c", "response", "", "abc"),
        ("a<|end_of_msg|>", "think", "a", ""),
        ("cut in a tag<|open|>resp", "think", "cut in a tag", ""),
        ("no sep<|close|>think<|open|>response<|sep|>here", "think", "no sep", "here"),
        ("twice<|close|>think<|sep|><|close|>think<|sep|>c", "think", "twice", "c"),
        ("a<|open|>think<|sep|>b<|open|>think<|sep|>c", "response", "bc", "a"),
        ("a<|open|>unknown x=\"1\"<|sep|>b<|close|>unknown<|sep|>c", "response", "", "abc"),
        ("a<|end_of_msg|>behind", "response", "", "a"),
        ("a<|close|>message<|sep|>b", "response", "", "ab"),
        ('<|open|>json type="object"<|sep|>{"a": 1}<|close|>json<|sep|>', "response", "", '{"a": 1}'),
        ("a <|", "response", "", "a <|"),
    ],
)  # fmt: skip
def test_broken_answers(output: str, opened: Any, reasoning: str, content: str) -> None:
    message = parse(output, opened)
    assert (message.reasoning, message.content, message.tool_calls) == (reasoning, content, [])


def test_an_answer_cut_in_its_reasoning_has_no_content() -> None:
    """The limit of tokens within the think channel: nothing of it may be taken for the answer."""
    for end in range(len("I think.<|close|>thin")):
        assert parse(OUTPUT[:end], "think").content == ""


@pytest.mark.parametrize(
    ("argument", "arguments"),
    [
        ('argument key="n" type="number"<|sep|>twelve', '{"n": "twelve"}'),
        ('argument key="n" type="number"<|sep|>1e2', '{"n": 1e2}'),
        ('argument key="n" type="number"<|sep|> 1.0 ', '{"n":  1.0 }'),
        ('argument key="n" type="number"<|sep|>"1"', '{"n": "\\"1\\""}'),
        ('argument key="n" type="number"<|sep|>NaN', '{"n": "NaN"}'),
        ('argument key="n" type="number"<|sep|>', '{"n": ""}'),
        ('argument key="b" type="boolean"<|sep|>True', '{"b": "True"}'),
        ('argument key="o" type="object"<|sep|>{"a": [1,', '{"o": "{\\"a\\": [1,"}'),
        ('argument key="o" type="object"<|sep|>[1]', '{"o": "[1]"}'),
        ('argument key="x"<|sep|>1', '{"x": "1"}'),
        ('argument key="x" type="integer"<|sep|>1', '{"x": 1}'),
        ('argument key="x" type="integer"<|sep|>one', '{"x": "one"}'),
        ('argument key="x" type="null"<|sep|>null', '{"x": null}'),
        ('argument type="string"<|sep|>v', '{"": "v"}'),
        ('argument key="a&quot;&amp;quot;" type="string"<|sep|>v', '{"a\\"&quot;": "v"}'),
        ('argument key="s" type="string"<|sep|>{"a": 1}', '{"s": "{\\"a\\": 1}"}'),
    ],
)
def test_arguments_of_every_kind(argument: str, arguments: str) -> None:
    assert parse(call_with(argument)).tool_calls == [ToolCall("f", 1, arguments)]
    json.loads(arguments)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"a":1}', '{"a":1}'),
        ("\n {}\n", "{}\n"),
        ("   ", "{}"),
        ('<|open|>json type="object"<|sep|><|close|>json<|sep|>', "{}"),
        ('<|open|>json<|sep|>{"a":1}<|close|>argument<|sep|>x', '{"a":1}'),
        ('<|open|>json<|sep|>1<|close|>json<|sep|><|open|>argument key="k"<|sep|>v', "1"),
        ('<|open|>argument key="k"<|sep|>v<|close|>argument<|sep|><|open|>json<|sep|>1', '{"k": "v"}'),
        ('<|open|>argument key="k"<|sep|>v<|close|>argument<|sep|>text', '{"k": "v"}'),
        ('<|open|>argument key="k"<|sep|>v<|open|>argument key="l"<|sep|>w', '{"k": "v", "l": "w"}'),
        ('<|open|>argument key="k"<|sep|>1<|close|>argument<|sep|>' * 2, '{"k": "1", "k": "1"}'),
    ],
)
def test_calls_that_are_not_well_formed(body: str, arguments: str) -> None:
    message = parse(f'<|open|>call tool="f"<|sep|>{body}<|close|>call<|sep|>')
    assert message.tool_calls == [ToolCall("f", 1, arguments)]


def test_calls_within_open_reasoning() -> None:
    output = 'why<|open|>call tool="f" index="1"<|sep|><|open|>call tool="g"<|sep|><|close|>call<|sep|> not'
    message = parse(f"{output}<|close|>think<|sep|>yes", "think")
    assert (message.reasoning, message.content) == ("why not", "yes")
    assert message.tool_calls == [ToolCall("f", 1, "{}"), ToolCall("g", 2, "{}")]


def test_more_calls_never_take_back_earlier_ones() -> None:
    parser = StreamParser("response")
    seen = 0
    for _ in range(50):
        for delta in parser.feed(call_with('argument key="k" type="string"<|sep|>v')):
            if delta.kind == "call":
                assert delta.call == seen
                seen += 1
    assert [call.index for call in parser.close().tool_calls] == [1] * 50
    assert seen == 50


def test_a_call_cut_at_every_place_is_not_taken_for_whole() -> None:
    output = call_with(
        'argument key="c" type="string"<|sep|>Par"is', 'argument key="n" type="number"<|sep|>12'
    )
    start, end = output.index("<|sep|><|open|>argument"), output.rindex("<|close|>call<|sep|>")
    for cut in range(start + len("<|sep|>"), end + len("<|close|>call")):
        message = read(StreamParser(), [output[:cut]])[0]
        assert message.tool_calls[0].name == "f"
        with pytest.raises(ValueError, match=r"."):
            json.loads(message.tool_calls[0].arguments)
    assert json.loads(parse(output).tool_calls[0].arguments) == {"c": 'Par"is', "n": 12}


def test_long_string_arguments_come_as_they_are_written() -> None:
    parser = StreamParser("response")
    parser.feed('<|open|>call tool="f"<|sep|><|open|>argument key="t" type="string"<|sep|>')
    assert parser.feed('a"b\n') == [Delta("arguments", 'a\\"b\\n', 0)]
    assert parser.feed("\\漢") == [Delta("arguments", "\\\\漢", 0)]


@pytest.mark.parametrize("kind", ["string", "array"])
def test_arguments_have_no_limit(kind: str) -> None:
    value = "x" * 200_000 if kind == "string" else "[" + "1, " * 70_000 + "1]"
    parser = StreamParser("response")
    parser.feed(f'<|open|>call tool="f"<|sep|><|open|>argument key="t" type="{kind}"<|sep|>')
    deltas = [delta for place in range(0, len(value), 2) for delta in parser.feed(value[place : place + 2])]
    deltas += parser.feed("<|close|>argument<|sep|><|close|>call<|sep|>")
    arguments = parser.close().tool_calls[0].arguments
    assert json.loads(arguments) == {"t": value if kind == "string" else json.loads(value)}
    assert sum(len(delta.text) for delta in deltas) + len('{"t": "') >= len(arguments)


@pytest.mark.parametrize("nested", ["[" * 100_000, "[" * 50_000 + "]" * 50_000, '{"a":' * 50_000])
def test_deep_nesting_is_no_recursion(nested: str) -> None:
    arguments = parse(call_with(f'argument key="o" type="array"<|sep|>{nested}')).tool_calls[0].arguments
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    rendered = text_of(render([message], add_generation_prompt=False))
    assert nested in rendered


@pytest.mark.parametrize(
    ("output", "closers"),
    [
        ("a", "<|close|>think<|sep|><|open|>response<|sep|>"),
        ("a<|close|>", "think<|sep|><|open|>response<|sep|>"),
        ("a<|close|>th", "ink<|sep|><|open|>response<|sep|>"),
        ("a<|close|>think", "<|sep|><|open|>response<|sep|>"),
        ("a<|open|>resp", "onse<|sep|>"),
        ("a<|open|>x", "<|sep|><|close|>think<|sep|><|open|>response<|sep|>"),
        ("a<|close|>think<|sep|>", ""),
        ("a<|end_of_msg|>", ""),
    ],
)
def test_the_think_channel_can_be_closed_from_everywhere(output: str, closers: str) -> None:
    parser = StreamParser("think")
    parser.feed(output)
    segments = parser.close_thinking()
    assert text_of(segments) == closers
    for segment in segments:
        assert parser.feed(segment) == []
    assert parser.channel == "content"
    assert parser.close().reasoning == "a"


def test_the_channel_of_the_next_text() -> None:
    parser = StreamParser("think")
    channels = [parser.channel]
    for end in (
        "think<|close|>think<|sep|><|open|>response<|sep|>",
        "<|open|>tools<|sep|>",
        "<|end_of_msg|>",
    ):
        parser.feed(end)
        channels.append(parser.channel)
    assert channels == ["reasoning", "content", "tools", "content"]


def test_control_tokens_of_other_kinds_are_dropped(tokenizer: Tokenizer) -> None:
    parser = StreamParser("response")
    for name in ("[EOS]", "<|media_begin|>", "[BOS]"):
        assert name in tokenizer.special_ids
        assert parser.feed(Segment("control", name)) == []


def test_a_header_without_end_takes_linear_time() -> None:
    parser = StreamParser("response")
    parser.feed("<|open|>call " + "a" * 2_000_000 + ' a="' * 200_000 + "<|sep|>")
    assert len(parser.close().tool_calls) == 1
