"""The events of an answer as the stream events of the Responses API; the last one has the whole response.

Items never open again: where the model goes back to an earlier channel, a new item begins.
"""

from __future__ import annotations

from typing import Any

from ...xtml import Delta
from .. import opaque
from ..events import Event, Finished, TextDelta
from ..routes.common import now

Json = dict[str, Any]

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


class ResponseStream:
    """Turns the events of one answer into stream events. `response`: the response as it stands; after
    Finished or `fail` it is what a client that does not stream gets."""

    def __init__(self, response_id: str, shown: Json, created_at: int, seal_reasoning: bool = False) -> None:
        """`response_id`: unique; the ids of items are made from it. `shown`: fields of the response that
        tell the request. `created_at`: seconds since 1970. `seal_reasoning`: reasoning items also carry
        `encrypted_content`."""
        self.response: Json = {
            "id": response_id,
            "object": "response",
            "created_at": created_at,
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **shown,
        }
        self._seal_reasoning = seal_reasoning
        self._sequence = 0
        self._item: Json | None = None
        self._texts: list[str] = []

    def start(self) -> list[Json]:
        """The first events, before any of the run."""
        return [
            self._event(kind, response={**self.response, "output": []})
            for kind in ("response.created", "response.in_progress")
        ]

    def feed(self, event: Event) -> list[Json]:
        """The stream events that follow from an event of the run."""
        if isinstance(event, TextDelta):
            return self._delta(event.delta) if event.delta is not None else []
        return self._end(event) if isinstance(event, Finished) else []

    def fail(self, message: str) -> list[Json]:
        """The last events of an answer that failed."""
        closed = self._close_item("incomplete")
        self.response["status"] = "failed"
        self.response["error"] = {"code": "server_error", "message": message}
        return [*closed, self._event("response.failed", response=self.response)]

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    @property
    def _place(self) -> Json:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.response["output"])}

    def _delta(self, delta: Delta) -> list[Json]:
        if delta.kind == "call":
            return self._open_item("function_call", name=delta.text, arguments="")
        if not delta.text:
            return []
        kind = {"reasoning": "reasoning", "content": "message", "arguments": "function_call"}[delta.kind]
        opened: list[Json] = []
        if self._item is None or self._item["type"] != kind:
            if kind == "function_call":
                return []
            opened = self._open_item(kind)
        self._texts.append(delta.text)
        return [*opened, self._text_event("delta", delta=delta.text)]

    def _text_event(self, step: str, **fields: Any) -> Json:
        """A `delta` or `done` event of the open item's text."""
        assert self._item is not None
        kind = self._item["type"]
        if kind == "function_call":
            return self._event(f"response.function_call_arguments.{step}", **self._place, **fields)
        fields["content_index"] = 0
        if kind == "reasoning":
            return self._event(f"response.reasoning_text.{step}", **self._place, **fields)
        return self._event(f"response.output_text.{step}", **self._place, **fields, logprobs=[])

    def _open_item(self, kind: str, **fields: Any) -> list[Json]:
        closed = self._close_item("completed")
        index = len(self.response["output"])
        tail = f"{self.response['id'].removeprefix('resp_')}_{index}"
        item: Json = {"id": f"{_PREFIXES[kind]}_{tail}", "type": kind, "status": "in_progress", **fields}
        if kind == "function_call":
            item["call_id"] = f"call_{tail}"
        else:
            item["content"] = []
        if kind == "message":
            item["role"] = "assistant"
        if kind == "reasoning":
            item |= {"summary": [], "encrypted_content": None}
        self._item, self._texts = item, []
        events = [*closed, self._event("response.output_item.added", output_index=index, item=_copy(item))]
        if kind != "function_call":
            part = _part(kind, "")
            events.append(
                self._event("response.content_part.added", **self._place, content_index=0, part=part)
            )
        return events

    def _close_item(self, status: str) -> list[Json]:
        if self._item is None:
            return []
        item, text = self._item, "".join(self._texts)
        kind = item["type"]
        item["status"] = status
        if kind == "function_call":
            item["arguments"] = text
            events = [self._text_event("done", arguments=text, name=item["name"])]
        else:
            part = _part(kind, text)
            item["content"] = [part]
            events = [
                self._text_event("done", text=text),
                self._event("response.content_part.done", **self._place, content_index=0, part=part),
            ]
        if kind == "reasoning" and self._seal_reasoning:
            item["encrypted_content"] = opaque.seal(text)
        index = len(self.response["output"])
        events.append(self._event("response.output_item.done", output_index=index, item=item))
        self.response["output"].append(item)
        self._item = None
        return events

    def _end(self, finished: Finished) -> list[Json]:
        status = "incomplete" if finished.reason == "length" else "completed"
        events = self._close_item(status)
        self.response["status"] = status
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.response["completed_at"] = now()
        self.response["usage"] = _usage(finished)
        return [*events, self._event(f"response.{status}", response=self.response)]


def _copy(item: Json) -> Json:
    """The item as it is now; its lists are empty."""
    return {key: [] if isinstance(value, list) else value for key, value in item.items()}


def _part(kind: str, text: str) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(finished: Finished) -> Json:
    """Tokens."""
    result = finished.result
    return {
        "input_tokens": result.n_prompt,
        "input_tokens_details": {"cached_tokens": result.timings.cache_n, "cache_write_tokens": 0},
        "output_tokens": result.n_predicted,
        "output_tokens_details": {"reasoning_tokens": finished.n_reasoning},
        "total_tokens": result.n_prompt + result.n_predicted,
    }
