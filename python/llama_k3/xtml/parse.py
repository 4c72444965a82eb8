"""The model's output, read piece by piece. It never fails and does not depend on how the output is cut.

Rules for output that is not well formed:

- Only control tokens are markup. Text is text, whatever it spells.
- A channel that opens ends the one before it; text outside every channel is content.
- A marker within a tag's header ends the header, as if its <|sep|> had come. A header is never shown. Tags of
  unknown names, closers of what is not open, and a <|sep|> without a header are dropped.
- A closer ends everything that is open inside of its tag. The closers of `argument` and `json` count as one.
- A call may come anywhere. It ends the call before it; text between calls is dropped. Inside of `think`, text
  behind the call is reasoning again.
- An `argument` or `json` tag outside of every call is dropped, its text is that of the channel.
- Text right in a call, without a tag, is the call's arguments as they are.
- An argument that is not JSON of its type becomes a string, one without a type is a string.
- Nothing behind <|end_of_msg|> is read.
"""

from __future__ import annotations

import re

from .arguments import ArgumentWriter
from .reader import SegmentReader
from .segments import (
    CLOSE,
    END_OF_MESSAGE,
    MARKERS,
    OPEN,
    SEP,
    Segment,
    close_tag,
    control,
    open_tag,
    text_segments,
)
from .types import Channel, Delta, Message, Opened

# The look behind keeps the search linear.
_ATTRIBUTE = re.compile(r'(?<![^\s"])([^\s="]+)="([^"]*)"')
_INDEX = re.compile("[0-9]{1,9}")
_CHANNELS = ("think", "response", "tools")
_ARGUMENTS = ("argument", "json")


def _attributes(header: str) -> dict[str, str]:
    """The attributes of a tag's header, unescaped."""
    pairs = _ATTRIBUTE.findall(header)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in pairs}


class StreamParser(SegmentReader):
    """Reads one answer; the rules are the module's."""

    def __init__(self, opened: Opened | None = None) -> None:
        """`opened`: the channel that the generation prompt opened."""
        super().__init__(MARKERS)
        # What is open, from the outside to the inside.
        self._channel: str | None = opened
        self._call: ArgumentWriter | None = None
        self._argument = ""
        # Text between <|open|> or <|close|> (self._marker) and <|sep|>.
        self._marker = ""
        self._header: list[str] = []

    @property
    def channel(self) -> Channel:
        """Where text would go now."""
        if self._call is not None or self._channel == "tools":
            return "tools"
        return "reasoning" if self._channel == "think" else "content"

    def flush(self) -> list[Delta]:
        """A call that is broken off keeps its arguments as far as they came, so that they are not taken for
        whole."""
        deltas = super().flush()
        if self._call is not None:
            deltas += self._answer.arguments(self._call.cut())
        return deltas

    def close_thinking(self) -> list[Segment]:
        """What closes the think channel from where it stands and opens the response; nothing elsewhere."""
        if self._channel != "think" or self._ended:
            return []
        header = "".join(self._header)
        if self._marker == OPEN and "response".startswith(header):
            return [*text_segments("response"[len(header) :]), control(SEP)]
        if self._marker == CLOSE and "think".startswith(header):
            closer = [*text_segments("think"[len(header) :]), control(SEP)]
        else:
            closer = [*([control(SEP)] if self._marker else []), *close_tag("think")]
        return closer + open_tag("response")

    def _text(self, text: str) -> list[Delta]:
        if self._marker:
            self._header.append(text)
            return []
        if self._call is not None:
            return self._answer.arguments(self._call.write(text))
        if self._channel == "tools":
            return []
        return self._answer.text("reasoning" if self._channel == "think" else "content", text)

    def _control(self, marker: str) -> list[Delta]:
        if marker not in MARKERS:
            return []
        deltas = self._end_header()
        if marker == END_OF_MESSAGE:
            deltas += self._end_channel()
            self._ended = True
        elif marker != SEP:
            self._marker = marker
        return deltas

    def _end_header(self) -> list[Delta]:
        marker, self._marker = self._marker, ""
        header = "".join(self._header).strip()
        self._header.clear()
        name = header.split(None, 1)[0] if header else ""
        if marker == OPEN:
            return self._opener(name, _attributes(header))
        return self._closer(name) if marker == CLOSE else []

    def _opener(self, name: str, attributes: dict[str, str]) -> list[Delta]:
        if name in ("message", *_CHANNELS):
            deltas = self._end_channel()
            self._channel = None if name == "message" else name
            return deltas
        if name == "call":
            deltas = self._end_call()
            self._call = ArgumentWriter()
            index = attributes.get("index", "")
            number = int(index) if _INDEX.fullmatch(index) else None
            return deltas + self._answer.call(attributes.get("tool", ""), number)
        if self._call is None or name not in _ARGUMENTS:
            return []
        self._argument = name
        if name == "json":
            return self._answer.arguments(self._call.begin_raw())
        return self._answer.arguments(self._call.begin(attributes.get("key", ""), attributes.get("type", "")))

    def _closer(self, name: str) -> list[Delta]:
        if name in ("message", self._channel):
            return self._end_channel()
        if name == "call":
            return self._end_call()
        if self._call is None or not self._argument or name not in _ARGUMENTS:
            return []
        self._argument = ""
        return self._answer.arguments(self._call.end())

    def _end_channel(self) -> list[Delta]:
        self._channel = None
        return self._end_call()

    def _end_call(self) -> list[Delta]:
        if self._call is None:
            return []
        writer, self._call, self._argument = self._call, None, ""
        return self._answer.arguments(writer.finish())


def parse(text: str, opened: Opened | None = None) -> Message:
    """The message in a whole output; see StreamParser."""
    parser = StreamParser(opened)
    parser.feed(text)
    return parser.close()
