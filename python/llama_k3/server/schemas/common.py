"""Fields that the native and the OpenAI endpoints share, and how they become options of an answer.

A field that is not known is ignored, as llama.cpp does. One that is known there and has no effect here is
an error unless its value asks for nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ...tokenizer import Tokenizer
from ..engine.request import Sampling
from ..errors import ApiError, unsupported
from ..limits import (
    INT32_MAX,
    MAX_LOGIT_BIAS,
    MAX_PROBS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
)
from ..options import ServerOptions
from ..service import AnswerOptions

Tokens = Annotated[int, Field(ge=-1, le=INT32_MAX)]
"""A number of tokens; -1: no limit."""

Penalty = Annotated[float, Field(ge=-100, le=100)]
StopString = Annotated[str, Field(max_length=MAX_STOP_LENGTH)]

_PLAIN = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
)
"""Fields that are Sampling's own."""

_MAX_BIAS = 10_000.0

SAMPLER_ORDER = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
"""llama.cpp's order, which is the one here too; dry, top_n_sigma, typ_p and xtc are steps that do nothing."""

_NOT_HERE = "there is no such sampler here"
UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "dynatemp_range": ((0,), _NOT_HERE),
    "typical_p": ((1,), _NOT_HERE),
    "top_n_sigma": ((-1, 0), _NOT_HERE),
    "xtc_probability": ((0,), _NOT_HERE),
    "dry_multiplier": ((0,), _NOT_HERE),
    "mirostat": ((0,), _NOT_HERE),
    "min_keep": ((0,), _NOT_HERE),
    "lora": (([],), "adapters cannot be loaded"),
    "grammar_lazy": ((False,), "a grammar holds from the first token on"),
    "grammar_triggers": (([],), "a grammar holds from the first token on"),
    "adaptive_target": ((-1,), _NOT_HERE),
    "input_prefix": (("",), "infill is not supported"),
    "input_suffix": (("",), "infill is not supported"),
    "input_extra": (([],), "infill is not supported"),
}
"""Known fields without effect: the values that ask for nothing, and why others are refused."""


class Form(BaseModel):
    """Values keep their JSON types: true is no number, "1" neither."""

    model_config = ConfigDict(strict=True, extra="allow")


class SamplingForm(Form):
    """How an answer is drawn and where it ends; llama.cpp's names."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Any] | list[list[Any]] | None = None
    samplers: list[str] | str | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    t_max_predict_ms: Annotated[float, Field(ge=-1, le=1e12)] | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    n_predict: Tokens | None = None
    max_tokens: Tokens | None = None
    stream: bool | None = None

    def check_supported(self, unsupported_fields: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
        """ApiError 400 for a field that is known and asks for what is not there."""
        extra = self.model_extra or {}
        for name, (neutral, reason) in unsupported_fields.items():
            value = extra.get(name)
            if value is not None and value not in neutral:
                raise unsupported(name, reason)

    def token_limit(self) -> int | None:
        """The first of the fields that limits the answer; None where none does."""
        limits = (self.max_tokens, self.n_predict)
        return next((limit for limit in limits if limit is not None), None)

    def answer_options(
        self, defaults: ServerOptions, tokenizer: Tokenizer, n_probs: int | None
    ) -> AnswerOptions:
        """`n_probs`: likeliest tokens to report, which each API asks for in its own way."""
        limit = self.token_limit()
        return AnswerOptions(
            sampling=self._sampling(defaults.sampling, tokenizer),
            max_tokens=defaults.n_predict if limit is None else limit,
            stop=self._stop_strings(),
            n_probs=n_probs,
            cache_prompt=_chosen(self.cache_prompt, defaults.cache_prompt),
            slot=None if self.id_slot in (None, -1) else self.id_slot,
            max_predict_ms=self.t_max_predict_ms if (self.t_max_predict_ms or 0) > 0 else None,
            ignore_eos=_chosen(self.ignore_eos, defaults.ignore_eos),
            timings_per_token=bool(self.timings_per_token),
        )

    def _stop_strings(self) -> tuple[str, ...]:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in stop if text)

    def _sampling(self, defaults: Sampling, tokenizer: Tokenizer) -> Sampling:
        given = {name: getattr(self, name) for name in _PLAIN if getattr(self, name) is not None}
        sampling = replace(defaults, **given)
        if self.samplers is not None:
            sampling = without_steps(sampling, self.samplers)
        # A seed is always named, so that the answer can be asked for again.
        seed = defaults.seed if self.seed in (None, -1) else self.seed
        seed = secrets.randbits(32) if seed is None else seed % 2**64
        bias = dict(defaults.logit_bias) | parse_logit_bias(self.logit_bias, tokenizer)
        return replace(sampling, seed=seed, logit_bias=bias)


def check_n_probs(name: str, value: int | None) -> None:
    """ApiError 400 where more likeliest tokens are asked for than are reported."""
    if value is not None and not 0 <= value <= MAX_PROBS:
        raise ApiError(400, f"{name}: found {value}, wanted 0 .. {MAX_PROBS}", param=name)


def _chosen(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def without_steps(sampling: Sampling, samplers: list[str] | str) -> Sampling:
    """The steps that are not listed do nothing; ApiError 400 where the list has another order."""
    wanted = f"names in the order of {', '.join(SAMPLER_ORDER)}"
    if isinstance(samplers, str):
        samplers = [name for name in samplers.split(";") if name]
    order = iter(SAMPLER_ORDER)
    if not all(name in order for name in samplers):
        raise ApiError(400, f"samplers: found {samplers!r}, wanted {wanted}", param="samplers")
    neutral: dict[str, dict[str, Any]] = {
        "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        "top_k": {"top_k": 0},
        "top_p": {"top_p": 1.0},
        "min_p": {"min_p": 0.0},
        "temperature": {"temperature": 1.0},
    }
    for name, values in neutral.items():
        if name not in samplers:
            sampling = replace(sampling, **values)
    return sampling


def parse_logit_bias(
    value: dict[str, Any] | list[list[Any]] | None, tokenizer: Tokenizer
) -> dict[int, float]:
    """Biases by token of all of llama.cpp's forms: an object of ids or texts, or a list of pairs
    [id or text, number or false]; false bans. A text stands for each of its tokens."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = [(int(key) if _is_id(key) else key, bias) for key, bias in value.items()]
    for index, pair in enumerate(value if isinstance(value, list) else ()):
        if len(pair) != 2:
            raise _bias_error(f"[{index}]", pair, "a pair of a token and a number")
        pairs.append((pair[0], pair[1]))
    if len(pairs) > MAX_LOGIT_BIAS:
        raise _bias_error("", len(pairs), f"at most {MAX_LOGIT_BIAS} entries")
    biases: dict[int, float] = {}
    for key, bias in pairs:
        number = _bias_number(key, bias)
        for token in _bias_tokens(key, tokenizer):
            biases[token] = number
    if len(biases) > MAX_LOGIT_BIAS:
        raise _bias_error("", len(biases), f"at most {MAX_LOGIT_BIAS} tokens")
    return biases


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= 10


def _bias_number(key: Any, bias: Any) -> float:
    if bias is False:
        return float("-inf")
    if isinstance(bias, bool) or not isinstance(bias, (int, float)) or abs(bias) > _MAX_BIAS:
        raise _bias_error(f"[{key!r}]", bias, f"false or a number within {_MAX_BIAS:.0f}")
    return float(bias)


def _bias_tokens(key: Any, tokenizer: Tokenizer) -> list[int]:
    if isinstance(key, str):
        return tokenizer.encode(key[:1024])
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < len(tokenizer):
        raise _bias_error("", key, f"a token id in 0 .. {len(tokenizer) - 1} or a text")
    return [key]


def _bias_error(place: str, found: Any, wanted: str) -> ApiError:
    return ApiError(400, f"logit_bias{place}: found {found!r:.80}, wanted {wanted}", param="logit_bias")
