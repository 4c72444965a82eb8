"""The events of an answer as Anthropic's stream events, and a whole message as the sum of them.

Blocks never open again: where the model goes back to an earlier channel, a new block begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ...xtml import Delta
from .. import opaque
from ..engine.request import Progress
from ..events import Event, Finished, TextDelta
from .tool_input import ToolInput

Json = dict[str, Any]


class MessageStream:
    """Turns the events of one answer into stream events."""

    def __init__(
        self,
        message_id: str,
        model: str,
        prompt_tokens: int,
        max_tokens: int,
        omit_thinking: bool = False,
    ) -> None:
        """`message_id`: unique; the ids of tool_use blocks are made from it. `omit_thinking`: the text of the
        reasoning is not shown, the signature of its block holds it."""
        self._id = message_id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._omit_thinking = omit_thinking
        self._started = False
        self._block = -1
        self._open: str | None = None
        self._thinking: list[str] = []
        self._input = ToolInput()

    def feed(self, event: Event) -> list[Json]:
        """The stream events that follow from an event of the run."""
        events: list[Json] = []
        if not self._started:
            self._started = True
            events.append(self._message_start(event.cache if isinstance(event, Progress) else 0))
        if isinstance(event, TextDelta):
            if event.delta is not None:
                events += self._delta(event.delta)
        elif isinstance(event, Finished):
            events += [*self._close_block(), *self._end(event)]
        return events

    def _message_start(self, cached: int) -> Json:
        message: Json = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._prompt_tokens, cached, 0),
        }
        return {"type": "message_start", "message": message}

    def _delta(self, delta: Delta) -> list[Json]:
        if delta.kind == "call":
            return self._open_block("tool_use", name=delta.text)
        if not delta.text:
            return []
        if delta.kind == "arguments":
            piece = self._input.feed(delta.text) if self._open == "tool_use" else ""
            return self._block_delta("input_json_delta", partial_json=piece) if piece else []
        if delta.kind == "content":
            opened = [] if self._open == "text" else self._open_block("text", text="")
            return [*opened, *self._block_delta("text_delta", text=delta.text)]
        opened = [] if self._open == "thinking" else self._open_block("thinking", thinking="", signature="")
        self._thinking.append(delta.text)
        shown = [] if self._omit_thinking else self._block_delta("thinking_delta", thinking=delta.text)
        return [*opened, *shown]

    def _open_block(self, kind: str, **fields: str) -> list[Json]:
        closed = self._close_block()
        self._block += 1
        self._open = kind
        block: Json = {"type": kind, **fields}
        if kind == "tool_use":
            self._input = ToolInput()
            block |= {"id": f"toolu_{self._id.removeprefix('msg_')}_{self._block}", "input": {}}
        return [*closed, {"type": "content_block_start", "index": self._block, "content_block": block}]

    def _block_delta(self, kind: str, **fields: str) -> list[Json]:
        delta = {"type": kind, **fields}
        return [{"type": "content_block_delta", "index": self._block, "delta": delta}]

    def _close_block(self) -> list[Json]:
        if self._open is None:
            return []
        last: list[Json] = []
        if self._open == "thinking":
            text, self._thinking = "".join(self._thinking), []
            signature = opaque.seal(text) if self._omit_thinking else opaque.sign(text)
            last = self._block_delta("signature_delta", signature=signature)
        elif self._open == "tool_use" and (rest := self._input.close()):
            last = self._block_delta("input_json_delta", partial_json=rest)
        self._open = None
        return [*last, {"type": "content_block_stop", "index": self._block}]

    def _end(self, finished: Finished) -> list[Json]:
        result = finished.result
        cached = result.timings.cache_n
        delta = {"stop_reason": self._stop_reason(finished), "stop_sequence": None}
        if finished.stop_type == "word":
            delta["stop_sequence"] = finished.stopping_word
        usage = _usage(result.n_prompt, cached, result.n_predicted)
        usage["output_tokens_details"] = {"thinking_tokens": finished.n_reasoning}
        return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]

    def _stop_reason(self, finished: Finished) -> str:
        if finished.stop_type == "word":
            return "stop_sequence"
        if finished.reason == "tool_calls":
            return "tool_use"
        if finished.reason == "stop":
            return "end_turn"
        full = finished.result.reason == "limit" and finished.result.n_predicted < self._max_tokens
        return "model_context_window_exceeded" if full else "max_tokens"


def _usage(n_prompt: int, n_cached: int, n_output: int) -> Json:
    """Tokens; `input_tokens` are those that were read anew."""
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_output,
    }


def whole_message(events: Iterable[Json]) -> Json:
    """The message that a client puts together from the stream events."""
    message: Json = {}
    texts: dict[tuple[int, str], list[str]] = {}
    for event in events:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            ((field, text),) = ((key, value) for key, value in event["delta"].items() if key != "type")
            texts.setdefault((event["index"], field), []).append(text)
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    for (index, field), pieces in texts.items():
        block, text = message["content"][index], "".join(pieces)
        if field == "partial_json":
            block["input"] = json.loads(text)
        else:
            block[field] = text
    return message
