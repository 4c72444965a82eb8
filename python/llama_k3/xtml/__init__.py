"""XTML, Kimi-K3's chat format: messages to segments, the model's output to reasoning, content and calls.

A tag is <|open|>NAME key="value"<|sep|> ... <|close|>NAME<|sep|>. The four markers are single control tokens,
all else is plain text. A message is a tag `message` and <|end_of_msg|>; the assistant's holds the channels
`think`, `response` and `tools`. Segments keep the two kinds apart, so that no text can become a control
token.

The facts of the format are those of the model's own encoder (encoding_k3.py of the checkpoint) and of
llama.cpp's models/templates/Kimi-K3.jinja, which agree.
"""

from .parse import StreamParser, parse
from .render import EFFORTS, generation_prompt, preamble, render, user_message
from .segments import (
    CLOSE,
    END_OF_MESSAGE,
    MARKERS,
    OPEN,
    SEP,
    Segment,
    encode,
    encode_with_boundaries,
    text_of,
)
from .types import AnswerParts, Channel, Delta, Message, Opened, ToolCall

__all__ = [
    "CLOSE",
    "EFFORTS",
    "END_OF_MESSAGE",
    "MARKERS",
    "OPEN",
    "SEP",
    "AnswerParts",
    "Channel",
    "Delta",
    "Message",
    "Opened",
    "Segment",
    "StreamParser",
    "ToolCall",
    "encode",
    "encode_with_boundaries",
    "generation_prompt",
    "parse",
    "preamble",
    "render",
    "text_of",
    "user_message",
]
