"""The chunks of a streamed chat. All but the text of a delta is made once for a stream."""

from __future__ import annotations

import json
from typing import Any

from ...xtml import Delta
from ..sse import event
from .common import FINGERPRINT, new_id, now

DONE = b"data: [DONE]\n\n"


class ThinkTags:
    """reasoning_format none: the reasoning stands in the content, in <think> tags."""

    OPEN, CLOSE = "<think>", "</think>"

    def __init__(self) -> None:
        self._open = False

    def tagged(self, delta: Delta) -> Delta:
        """A reasoning or content delta as content."""
        text = delta.text
        if delta.kind == "reasoning" and not self._open:
            text = self.OPEN + text
        elif delta.kind == "content" and self._open:
            text = self.CLOSE + text
        self._open = delta.kind == "reasoning"
        return Delta("content", text)

    @classmethod
    def whole(cls, reasoning: str, content: str) -> str:
        """The same for a whole answer."""
        if not reasoning:
            return content
        return cls.OPEN + reasoning + (cls.CLOSE + content if content else "")


class ChatChunks:
    """Server-sent chat.completion.chunk events of one request."""

    def __init__(self, model: str, n: int) -> None:
        """`n`: answers."""
        self._base = {
            "created": now(),
            "id": new_id("chatcmpl-"),
            "model": model,
            "system_fingerprint": FINGERPRINT,
            "object": "chat.completion.chunk",
        }
        base = json.dumps(self._base, ensure_ascii=False, separators=(",", ":"))
        self._tail = ("}}]," + base[1:] + "\n\n").encode("utf-8", "replace")
        self._heads = [
            {
                kind: (
                    f'data: {{"choices":[{{"finish_reason":null,"index":{index},"delta":{{"{name}":'
                ).encode()
                for kind, name in (("content", "content"), ("reasoning", "reasoning_content"))
            }
            for index in range(n)
        ]

    def chunk(self, index: int, delta: dict[str, Any], **fields: Any) -> bytes:
        """Any chunk of the answer `index`."""
        choice: dict[str, Any] = {"finish_reason": None, "index": index, "delta": delta}
        if (entries := fields.pop("logprobs", None)) is not None:
            choice["logprobs"] = {"content": entries, "refusal": None}
        return event({"choices": [choice], **self._base, **fields})

    def first(self, index: int) -> bytes:
        """Names the role."""
        return self.chunk(index, {"role": "assistant", "content": None})

    def delta(
        self, index: int, delta: Delta, entries: list[dict[str, Any]] | None, timings: dict[str, float] | None
    ) -> bytes:
        """A piece of reasoning, content or a tool call."""
        fields = {} if timings is None else {"timings": timings}
        if delta.kind == "call":
            function = {"name": delta.text, "arguments": ""}
            call = {
                "index": delta.call,
                "id": new_id("call_"),
                "type": "function",
                "function": function,
            }
            return self.chunk(index, {"tool_calls": [call]}, **fields)
        if delta.kind == "arguments":
            part = {"index": delta.call, "function": {"arguments": delta.text}}
            return self.chunk(index, {"tool_calls": [part]}, **fields)
        if entries is None and timings is None:
            text = json.dumps(delta.text, ensure_ascii=False).encode("utf-8", "replace")
            return self._heads[index][delta.kind] + text + self._tail
        name = "content" if delta.kind == "content" else "reasoning_content"
        return self.chunk(index, {name: delta.text}, logprobs=entries, **fields)

    def end(self, index: int, reason: str, **fields: Any) -> bytes:
        """The end of the answer `index`."""
        choice = {"finish_reason": reason, "index": index, "delta": {}}
        return event({"choices": [choice], **self._base, **fields})

    def usage(self, usage: dict[str, Any], timings: dict[str, float]) -> bytes:
        """Tokens of the whole request."""
        return event({"choices": [], **self._base, "usage": usage, "timings": timings})
