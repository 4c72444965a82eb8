"""Tokens of texts, texts of tokens, and the prompts of chats."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response
from pydantic import Field

from ...tokenizer import Tokenizer
from ..bodies import api_router
from ..limits import INT32_MAX
from ..schemas.chat import ChatForm
from ..schemas.common import Form
from ..schemas.completion import check_token
from ..state import State
from .common import json_response

router = api_router()


class TokenizeForm(Form):
    """`parse_special`: names of control tokens become these tokens. `add_special`: without effect, as the
    model's texts begin with no token of their own."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeForm(Form):
    tokens: list[Annotated[int, Field(ge=0, le=INT32_MAX)]]


@router.post("/tokenize", summary="Tokens of a text")
async def tokenize(form: TokenizeForm, state: State) -> Response:
    """{"tokens": [...]}; with pieces each one as {"id", "piece"}."""
    service = state.service
    tokenizer = service.tokenizer
    special = form.parse_special is not False
    tokens = await service.in_thread(lambda: tokenizer.encode(form.content, special))
    if not form.with_pieces:
        return json_response({"tokens": tokens})
    return json_response({"tokens": [{"id": token, "piece": _piece(token, tokenizer)} for token in tokens]})


def _piece(token: int, tokenizer: Tokenizer) -> str | list[int]:
    """The text of a token, or its bytes where they are no text by themselves."""
    data = tokenizer.decode_bytes([token])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


@router.post("/detokenize", summary="The text of tokens")
async def detokenize(form: DetokenizeForm, state: State) -> Response:
    """{"content": text}; bytes that are no text become U+FFFD."""
    tokenizer = state.service.tokenizer
    tokens = [check_token(token, f"tokens[{index}]", tokenizer) for index, token in enumerate(form.tokens)]
    return json_response({"content": tokenizer.decode(tokens)})


@router.post("/apply-template", summary="The prompt of a chat")
async def apply_template(form: ChatForm, state: State) -> Response:
    """{"prompt": text}: what /v1/chat/completions makes of the same request. As text, control tokens and
    their names look alike; only the server's own rendering tells them apart."""
    service = state.service
    task = form.to_task(state.options, service.tokenizer)
    prompt = await service.in_thread(lambda: service.render(task))
    return json_response({"prompt": prompt.text})
