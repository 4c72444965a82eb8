"""The forms of /completion and /v1/completions, and how they become TextTasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from ...tokenizer import Tokenizer
from ..errors import ApiError, unsupported
from ..limits import MAX_ANSWERS, MAX_PROBS, MAX_PROMPTS, MAX_RESPONSE_FIELDS
from .chat import StreamOptions
from .common import UNSUPPORTED, SamplingForm

TEXT_UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **UNSUPPORTED,
    "post_sampling_probs": ((False,), "probabilities are those of the model, before any sampler"),
    "best_of": ((1,), "answers are not ranked, use `n`"),
    "echo": ((False,), "the prompt is not repeated"),
    "suffix": (("",), "infill is not supported"),
}


_PROMPT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}]}


class TextForm(SamplingForm):
    """What both completion endpoints have."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]
    grammar: str | None = None
    json_schema: Any = None

    def check_constraint(self) -> None:
        """ApiError 400 where two constraints are asked for."""
        if self.grammar and self.json_schema is not None:
            raise ApiError(400, "grammar: found json_schema as well, wanted one of the two", param="grammar")


class CompletionForm(TextForm):
    """llama.cpp's /completion."""

    n_probs: Annotated[int, Field(ge=0, le=MAX_PROBS)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Field(max_length=MAX_RESPONSE_FIELDS)] | None = None


class OpenAICompletionForm(TextForm):
    """OpenAI's /v1/completions."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_PROBS)] | None = None
    stream_options: StreamOptions | None = None


def parse_prompts(prompt: Any, tokenizer: Tokenizer) -> list[list[int]]:
    """Tokens of each prompt: a text, a list of token ids, a list of both mixed, or a list of prompts.

    Names of control tokens in a text become these tokens. ApiError 400: none of these forms.
    """
    if isinstance(prompt, list) and not _is_one_prompt(prompt):
        if not 1 <= len(prompt) <= MAX_PROMPTS:
            raise ApiError(
                400, f"prompt: found {len(prompt)} prompts, wanted 1 .. {MAX_PROMPTS}", param="prompt"
            )
        return [_one_prompt(item, f"prompt[{index}]", tokenizer) for index, item in enumerate(prompt)]
    return [_one_prompt(prompt, "prompt", tokenizer)]


def _is_one_prompt(items: list[Any]) -> bool:
    """A list with token ids is one prompt; a list of texts alone is several."""
    return any(isinstance(item, int) for item in items)


def _one_prompt(prompt: Any, place: str, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, dict) and isinstance(prompt.get("prompt_string"), str):
        if prompt.get("multimodal_data"):
            raise unsupported(f"{place}.multimodal_data", "the model reads text alone")
        prompt = prompt["prompt_string"]
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, special=True)
    if not isinstance(prompt, list):
        raise ApiError(
            400, f"{place}: found {prompt!r:.80}, wanted a text, token ids or a list of them", param="prompt"
        )
    tokens: list[int] = []
    for index, item in enumerate(prompt):
        if isinstance(item, str):
            tokens += tokenizer.encode(item, special=True)
        else:
            tokens.append(check_token(item, f"{place}[{index}]", tokenizer))
    return tokens


def check_token(value: Any, place: str, tokenizer: Tokenizer) -> int:
    """A token id; ApiError 400 names the place."""
    if type(value) is not int or not 0 <= value < len(tokenizer):
        raise ApiError(
            400, f"{place}: found {value!r:.80}, wanted a token id in 0 .. {len(tokenizer) - 1}", param=place
        )
    return value
