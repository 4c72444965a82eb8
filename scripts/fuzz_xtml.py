"""Feeds the XTML and K2 parsers random and broken answers, cut at random places, and checks what must hold.

    python scripts/fuzz_xtml.py --minutes 10 [--seed N] [--model FILE]

With a model file, whose vocabulary is used, messages are rendered, tokenised and read back, and random
tokens read. Prints the number of
cases; the first failure ends the run with its seed and the answer, and exit status 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from llama_k3.chat import AnswerReader, K2Chat, K3Chat
from llama_k3.xtml import Channel, Delta, Message, Segment

from llama_k3 import Model, Tokenizer, k2, xtml

Parser = xtml.StreamParser | k2.StreamParser
_K2_MARKERS = (
    k2.SECTION_BEGIN,
    k2.SECTION_END,
    k2.CALL_BEGIN,
    k2.CALL_END,
    k2.ARGUMENTS_BEGIN,
    k2.END,
)
_HEADERS = (
    *("think", "response", "tools", "message", "call", "argument", "json", "unknown", "", " think "),
    *('call tool="f" index="1"', 'call tool="&quot;&amp;" index="x"', 'call tool=""', 'message role="user"'),
    *('argument key="k" type="string"', 'argument key="a&quot;b" type="number"', 'argument type="object"'),
    *('argument key="l" type="array"', 'argument key="m"', 'argument key="n" type="integer"'),
    *('json type="object"', 'argument key="b" type="boolean"', 'call tool="cut', "arg"),
)
_TEXTS = (
    *("a", "Hello, world.", '"', "\\", "\n", " ", "{", "}", "[1, 2]", "1e2", " 1.0 ", "true", "null", "NaN"),
    *('{"a": 1}', '{"a":', "漢字", "🙂", "\u2028", "\x00", "<", "<|", "<|op", "en|>", "|>", "functions.f:0"),
    *("functions.", ":1", '{"x": {"y": [null]}}', "x" * 300, "\ufffd", "&quot;", "twelve"),
)


def random_answer(draw: random.Random, markers: Sequence[str]) -> list[Segment]:
    """A soup of markers, headers and texts, or an answer in proper form with a few faults."""
    if draw.random() < 0.4:
        return [random_segment(draw, markers) for _ in range(draw.randint(0, 40))]
    message = random_message(draw)
    if xtml.OPEN in markers:
        return damaged(draw, written(message), markers)
    segments = K2Chat().render([message])
    return damaged(draw, segments[3 : -len(k2.generation_prompt())], markers)


def random_message(draw: random.Random) -> dict[str, Any]:
    """An assistant's message in OpenAI's form."""
    calls = [
        {"function": {"name": draw.choice(["f", "a.b", 'q"&']), "arguments": random_arguments(draw)}}
        for _ in range(draw.randint(0, 3))
    ]
    texts = {"reasoning_content": random_text(draw), "content": random_text(draw)}
    return {"role": "assistant", **texts, "tool_calls": calls}


def damaged(draw: random.Random, segments: list[Segment], markers: Sequence[str]) -> list[Segment]:
    """Up to three segments lost, repeated, exchanged or put in, and perhaps an end that is missing."""
    segments = list(segments)
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        place = draw.randrange(len(segments) + 1)
        fault = draw.randrange(4)
        if fault == 0:
            del segments[place : place + 1]
        elif fault == 1:
            segments[place:place] = segments[place : place + draw.randint(1, 4)]
        elif fault == 2:
            segments[place : place + 2] = reversed(segments[place : place + 2])
        else:
            segments.insert(place, random_segment(draw, markers))
    return segments[: draw.randrange(len(segments) + 1)] if draw.random() < 0.2 else segments


def random_segment(draw: random.Random, markers: Sequence[str]) -> Segment:
    kind = draw.random()
    if kind < 0.5:
        return Segment("control", draw.choice([*markers, *markers, "[EOS]"]))
    return Segment("text", draw.choice(_HEADERS[:-1] if kind < 0.75 else _TEXTS) or " ")


def random_text(draw: random.Random) -> str:
    return "".join(draw.choice(_TEXTS) for _ in range(draw.choice([0, 1, 1, 2, 5])))


def random_arguments(draw: random.Random) -> str:
    """JSON of an object in any layout, or something else."""
    if draw.random() < 0.15:
        return random_text(draw)
    space = ["", " ", "\n  "]
    values = ["1e2", "-0.50", "true", "null", '"a\\u00e9\\n"', "[1,2 ,3]", '{"b": [] }', '""', '"<|sep|>"']
    members = [
        f'{draw.choice(space)}"{draw.choice(["a", "b", "é", "q&"])}"{draw.choice(space)}:'
        f"{draw.choice(space)}{draw.choice(values)}{draw.choice(space)}"
        for _ in range(draw.randint(0, 4))
    ]
    return "{" + ",".join(members) + "}"


def recut(draw: random.Random, segments: Sequence[Segment]) -> list[Segment]:
    """The same control tokens and texts, with the texts cut at other places."""
    pieces: list[Segment] = []
    for segment in segments:
        text = segment.text
        if segment.kind == "control":
            pieces.append(segment)
            continue
        while text:
            size = draw.choice([1, 2, 7, len(text)])
            pieces.append(Segment("text", text[:size]))
            text = text[size:]
    return pieces


def recut_text(draw: random.Random, text: str) -> list[str]:
    pieces = []
    while text:
        size = draw.choice([1, 2, 3, 11, len(text)])
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def read(parser: Parser, pieces: Sequence[Segment | str]) -> tuple[Message, list[Delta], Channel]:
    """The message, all deltas, and the channel at the end; checks that the deltas add up to the message."""
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    channel = parser.channel
    deltas += parser.flush()
    message = parser.close()
    check_deltas(message, deltas)
    return message, deltas, channel


def check_deltas(message: Message, deltas: Sequence[Delta]) -> None:
    """All deltas together are the message; calls come in order and before their arguments."""
    added = Message()
    for delta in deltas:
        assert delta.text or delta.kind == "call", delta
        if delta.kind == "reasoning":
            added.reasoning += delta.text
        elif delta.kind == "content":
            added.content += delta.text
        elif delta.kind == "call":
            assert delta.call == len(added.tool_calls)
            index = message.tool_calls[delta.call].index
            added.tool_calls.append(xtml.ToolCall(delta.text, index, ""))
        else:
            assert delta.call == len(added.tool_calls) - 1
            added.tool_calls[delta.call].arguments += delta.text
    assert added == message, (added, message)


def check_answer(draw: random.Random, segments: Sequence[Segment], opened: xtml.Opened | None) -> None:
    """XTML: what holds for every answer."""

    def parser() -> xtml.StreamParser:
        return xtml.StreamParser(opened)

    message, _, channel = read(parser(), segments)
    assert read(parser(), recut(draw, segments))[0] == message
    check_text(draw, parser, segments, xtml.MARKERS)
    check_endings(parser(), segments, channel)
    check_replay(message)


def check_text(draw: random.Random, parser: Any, segments: Sequence[Segment], markers: Sequence[str]) -> None:
    """As text: the same for every cut, and no marker in a delta."""
    text = xtml.text_of(segments)
    whole, deltas, _ = read(parser(), [text])
    cut, cut_deltas, _ = read(parser(), recut_text(draw, text))
    assert cut == whole
    shown = [delta.text for delta in [*deltas, *cut_deltas] if delta.kind in ("reasoning", "content")]
    assert not any(marker in piece for piece in shown for marker in markers)


def check_endings(parser: Parser, segments: Sequence[Segment], channel: Channel) -> None:
    """Closers end the message; a closed think channel is followed by content."""
    for segment in segments:
        parser.feed(segment)
    if isinstance(parser, xtml.StreamParser) and (closers := parser.close_thinking()):
        for segment in closers:
            parser.feed(segment)
        assert parser.channel == "content"


def check_replay(message: Message) -> None:
    """A message that a client sends back is read as the same, once its arguments are in our own layout."""
    once = replayed(message)
    if once is not None:
        assert (once.reasoning, once.content) == (message.reasoning, message.content)
        assert [call.name for call in once.tool_calls] == [call.name for call in message.tool_calls]
        assert replayed(once) == once


def sent_back(message: Message) -> dict[str, Any]:
    """The message as a client returns it."""
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls]
    texts = {"reasoning_content": message.reasoning, "content": message.content}
    return {"role": "assistant", **texts, "tool_calls": calls}


def written(message: dict[str, Any], thinking: bool = True) -> list[Segment]:
    """What the model writes to say this: the message behind its opening."""
    segments = xtml.render([message], thinking=thinking, add_generation_prompt=False)
    return segments[len(xtml.preamble(None, thinking)) + len(xtml.generation_prompt(thinking)) :]


def replayed(message: Message) -> Message | None:
    """The message rendered and read; None where a call without a name keeps it from being rendered."""
    if not all(call.name for call in message.tool_calls):
        return None
    parser = xtml.StreamParser("think")
    for segment in written(sent_back(message)):
        parser.feed(segment)
    return parser.close()


def check_round_trip(draw: random.Random, tokenizer: Tokenizer) -> None:
    """Rendered, tokenised, parsed: the same message. Sent back by a client: the same tokens."""
    message, thinking = random_message(draw), draw.random() < 0.7
    ids = xtml.encode(written(message, thinking), tokenizer)
    reader = K3Chat().reader(tokenizer, K3Chat().opened(thinking))
    for token in ids:
        reader.feed(token)
    parsed = reader.close()
    assert parsed.content == message["content"]
    assert parsed.reasoning == (message["reasoning_content"] if thinking else "")
    functions = [call["function"] for call in message["tool_calls"]]
    assert [call.name for call in parsed.tool_calls] == [function["name"] for function in functions]
    assert xtml.encode(written(sent_back(parsed), thinking), tokenizer) == ids
    for call, function in zip(parsed.tool_calls, functions, strict=True):
        check_arguments(function["arguments"], call.arguments)


def check_arguments(given: str, parsed: str) -> None:
    """What the parser tells is what was given: the same members, with numbers as they were written."""
    decode = json.JSONDecoder(
        object_pairs_hook=list, parse_int=str, parse_float=str, parse_constant=str
    ).decode
    try:
        wanted = decode(given)
    except ValueError:
        assert parsed == (given if given.strip() else "{}")
        return
    assert decode(parsed) == wanted


def check_k2_answer(draw: random.Random, segments: Sequence[Segment]) -> None:
    """K2: what holds for every answer."""
    message, _, channel = read(k2.StreamParser(), segments)
    assert read(k2.StreamParser(), recut(draw, segments))[0] == message
    check_text(draw, k2.StreamParser, segments, _K2_MARKERS)
    check_endings(k2.StreamParser(), segments, channel)


def check_tokens(reader: AnswerReader, tokens: Sequence[int]) -> None:
    """Any tokens at all."""
    deltas = [delta for token in tokens for delta in reader.feed(token)]
    deltas += reader.flush()
    check_deltas(reader.close(), deltas)


def run_case(seed: int, tokenizer: Tokenizer | None) -> None:
    """One random case of each kind."""
    draw = random.Random(seed)
    opened: xtml.Opened | None = draw.choice(["think", "response", None])
    check_answer(draw, random_answer(draw, xtml.MARKERS), opened)
    check_k2_answer(draw, random_answer(draw, _K2_MARKERS))
    if tokenizer is not None:
        check_round_trip(draw, tokenizer)
        special = list(tokenizer.special_ids.values())[:8]
        tokens = [
            draw.choice(special) if draw.random() < 0.3 else draw.randrange(len(tokenizer))
            for _ in range(draw.randint(0, 60))
        ]
        check_tokens(K3Chat().reader(tokenizer, opened), tokens)
        check_tokens(K2Chat().reader(tokenizer, None), tokens)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True, help="how long to run")
    parser.add_argument("--seed", type=int, default=0, help="the first case (0)")
    parser.add_argument("--model", help="GGUF whose vocabulary the random tokens come from")
    args = parser.parse_args()
    tokenizer = Model(args.model).tokenizer if args.model else None
    end = time.monotonic() + 60 * args.minutes
    seed = args.seed
    while time.monotonic() < end:
        try:
            run_case(seed, tokenizer)
        except Exception:
            print(f"failed at --seed {seed}, after {seed - args.seed} cases", file=sys.stderr)
            raise
        seed += 1
    print(f"{seed - args.seed} cases from seed {args.seed}: no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
