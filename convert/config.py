"""Hyper-parameters of Kimi-K3 and Kimi-Linear, read from config.json and checked.

Everything that the model's maths depends on is read here or refused here: a value that the runtime does not
implement is an error that names the field, the value found and the value wanted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import (
    ConfigError,
    FieldRangeError,
    FieldTypeError,
    LayerListError,
    MissingFieldError,
    UnsupportedError,
)

KIMI_K3 = "kimi-k3"
KIMI_LINEAR = "kimi-linear"

KDA = "kda"
MLA = "mla"
SHORT_CONV = "short_conv"

MAX_LAYERS = 512
MAX_EXPERTS = 4096
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 20
MAX_CONTEXT = (1 << 31) - 1

# The reference model code builds the q_a/kv_a norms without passing rms_norm_eps, for both architectures, so
# they keep its class default; its q/k L2 normalisation uses the same constant.
LORA_NORM_EPS = 1e-6
L2_NORM_EPS = 1e-6

K3_ONLY_FIELDS = ("attn_res_block_size", "routed_expert_hidden_size")


@dataclass(frozen=True)
class HyperParameters:
    """One model's sizes and constants; `None` where the architecture does not have the part."""

    arch: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx: int
    n_head: int
    n_ff: int
    n_layer_dense: int
    rms_eps: float
    rope_theta: float | None
    kda_head_dim: int
    conv_kernel: int
    gate_lower_bound: float | None
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_head_dim: int
    n_expert: int
    n_expert_used: int
    n_expert_shared: int
    n_expert_group_used: int
    n_ff_expert: int
    n_latent: int | None
    routed_scale: float
    situ_beta: float | None
    situ_linear_beta: float | None
    attn_res_block: int | None
    layer_kinds: tuple[str, ...]

    @property
    def is_k3(self) -> bool:
        return self.arch == KIMI_K3

    @property
    def kda_width(self) -> int:
        """Channels of one KDA projection: heads x head size."""
        return self.n_head * self.kda_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Width of one query or key head of the expanded MLA form."""
        return self.qk_nope_dim + self.qk_rope_dim

    @property
    def expert_width(self) -> int:
        """Width of a routed expert's input and output."""
        return self.n_latent if self.n_latent is not None else self.n_embd

    @property
    def n_ff_shared(self) -> int:
        return self.n_ff_expert * self.n_expert_shared


class Fields:
    """Typed access to one JSON object of config.json."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise FieldTypeError(where, found=_show(values), wanted="an object")
        self.values: dict[str, Any] = values
        self.where = where

    def path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def present(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str, *aliases: str) -> Any:
        """The value of `name` or of the first alias that is set; an error where none is."""
        for key in (name, *aliases):
            if self.values.get(key) is not None:
                return self.values[key]
        raise MissingFieldError(self.path(name))

    def integer(self, name: str, low: int, high: int, *aliases: str) -> int:
        value = self.get(name, *aliases)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldTypeError(self.path(name), found=_show(value), wanted="an integer")
        if not low <= value <= high:
            raise FieldRangeError(self.path(name), found=_show(value), wanted=f"{low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FieldTypeError(self.path(name), found=_show(value), wanted="a number")
        if not math.isfinite(value) or not low <= value <= high:
            raise FieldRangeError(self.path(name), found=_show(value), wanted=f"{low:g} to {high:g}")
        return float(value)

    def require(self, name: str, wanted: Any, *, default: Any = None) -> None:
        """Refuses any value of `name` but `wanted`; `default` stands for an absent field."""
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise MissingFieldError(self.path(name), wanted=_show(wanted))
        if type(value) is not type(wanted) or value != wanted:
            raise UnsupportedError(self.path(name), found=_show(value), wanted=_show(wanted))

    def forbid(self, name: str, reason: str) -> None:
        """Refuses `name` where it is set to anything."""
        if self.values.get(name) is not None:
            found = _show(self.values[name])
            raise UnsupportedError(self.path(name), found=found, wanted=f"absent ({reason})")


def text_fields(config: Mapping[str, Any]) -> Fields:
    """The language model's object: `text_config` where there is one, else the whole file."""
    if config.get("text_config") is not None:
        return Fields(config["text_config"], "text_config")
    return Fields(config, "")


def read_config(config: Mapping[str, Any]) -> HyperParameters:
    """Reads and checks a parsed config.json.

    Raises a ConfigError that names the field. A layer in neither list is not an error here: its kind is
    `short_conv`, and it is for the caller to report it.
    """
    fields = text_fields(config)
    arch = _architecture(config, fields)
    _refuse_unsupported(config, fields, arch)
    linear = Fields(fields.get("linear_attn_config"), fields.path("linear_attn_config"))
    n_layer = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    n_head = fields.integer("num_attention_heads", 1, 4096)
    _check_heads(fields, linear, n_head)
    n_expert = fields.integer("num_experts", 1, MAX_EXPERTS)
    k3 = arch == KIMI_K3
    return HyperParameters(
        arch=arch,
        n_layer=n_layer,
        n_embd=fields.integer("hidden_size", 1, MAX_WIDTH),
        n_vocab=fields.integer("vocab_size", 1, MAX_VOCAB),
        n_ctx=fields.integer("max_position_embeddings", 1, MAX_CONTEXT, "model_max_length"),
        n_head=n_head,
        n_ff=fields.integer("intermediate_size", 1, MAX_WIDTH),
        n_layer_dense=fields.integer("first_k_dense_replace", 0, n_layer),
        rms_eps=fields.number("rms_norm_eps", 1e-12, 1e-1),
        rope_theta=fields.number("rope_theta", 1.0, 1e12) if fields.present("rope_theta") else None,
        kda_head_dim=linear.integer("head_dim", 1, 4096),
        conv_kernel=linear.integer("short_conv_kernel_size", 1, 64),
        gate_lower_bound=linear.number("gate_lower_bound", -100.0, -1e-6) if k3 else None,
        q_lora_rank=fields.integer("q_lora_rank", 1, MAX_WIDTH) if k3 else None,
        kv_lora_rank=fields.integer("kv_lora_rank", 1, MAX_WIDTH),
        qk_nope_dim=fields.integer("qk_nope_head_dim", 1, 4096),
        qk_rope_dim=fields.integer("qk_rope_head_dim", 1, 4096),
        v_head_dim=fields.integer("v_head_dim", 1, 4096),
        n_expert=n_expert,
        n_expert_used=fields.integer("num_experts_per_token", 1, n_expert, "num_experts_per_tok"),
        n_expert_shared=fields.integer("num_shared_experts", 1, 64),
        n_expert_group_used=1,
        n_ff_expert=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        n_latent=fields.integer("routed_expert_hidden_size", 1, MAX_WIDTH) if k3 else None,
        routed_scale=fields.number("routed_scaling_factor", 1e-6, 1e6),
        situ_beta=fields.number("activation_situ_beta", 1e-6, 1e6) if k3 else None,
        situ_linear_beta=_situ_linear_beta(fields) if k3 else None,
        attn_res_block=fields.integer("attn_res_block_size", 1, MAX_LAYERS) if k3 else None,
        layer_kinds=_layer_kinds(linear, n_layer),
    )


def check_packing(config: Mapping[str, Any]) -> None:
    """Refuses packed weights of any other format than the one whose codes the converter knows."""
    fields = text_fields(config)
    owner = fields if fields.present("quantization_config") else Fields(dict(config), "")
    packing = Fields(owner.get("quantization_config"), owner.path("quantization_config"))
    packing.require("quant_method", "compressed-tensors")
    packing.require("format", "mxfp4-pack-quantized")


def _architecture(config: Mapping[str, Any], fields: Fields) -> str:
    """Which of the two models this is.

    The top-level class decides: Kimi-K3's text_config calls itself KimiLinearForCausalLM. A text-only file
    that calls itself so is told apart by the fields that only Kimi-K3 has.
    """
    classes = config.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1 or not isinstance(classes[0], str):
        raise ConfigError("architectures", found=_show(classes), wanted="a list of one class name")
    name = classes[0]
    has_k3_fields = any(fields.present(field) for field in K3_ONLY_FIELDS)
    if name == "KimiK3ForConditionalGeneration":
        return KIMI_K3
    if name in ("KimiLinearForCausalLM", "KimiLinearModel"):
        return KIMI_K3 if has_k3_fields else KIMI_LINEAR
    raise UnsupportedError(
        "architectures", found=_show(name), wanted="KimiK3ForConditionalGeneration or KimiLinearForCausalLM"
    )


def _refuse_unsupported(config: Mapping[str, Any], fields: Fields, arch: str) -> None:
    """Refuses every value that changes the maths in a way the runtime does not implement."""
    k3 = arch == KIMI_K3
    top = Fields(dict(config), "")
    top.require("tie_word_embeddings", False, default=False)
    fields.require("tie_word_embeddings", False, default=False)
    fields.require("hidden_act", "situ" if k3 else "silu")
    fields.require("mla_use_nope", True)
    fields.require("mla_use_output_gate", k3, default=None if k3 else False)
    fields.require("moe_router_activation_func", "sigmoid")
    fields.require("moe_renormalize", True)
    fields.require("topk_method", "noaux_tc", default="noaux_tc")
    fields.require("num_expert_group", 1, default=1)
    fields.require("topk_group", 1, default=1)
    fields.require("moe_layer_freq", 1, default=1)
    fields.require("num_nextn_predict_layers", 0, default=0)
    fields.require("attention_bias", False, default=False)
    fields.forbid("rope_scaling", "the model applies no rotation")
    linear = Fields(fields.get("linear_attn_config"), fields.path("linear_attn_config"))
    linear.require("use_full_rank_gate", k3, default=None if k3 else False)
    linear.require("short_conv_kernel_size", 4)
    if k3:
        fields.require("latent_moe_use_norm", True)
    else:
        fields.forbid("q_lora_rank", "Kimi-Linear has one query projection")
        linear.forbid("gate_lower_bound", "Kimi-Linear's decay gate is the softplus one")
    known = {"full_attn_layers", "kda_layers", "num_heads", "head_dim", "short_conv_kernel_size"}
    for name in linear.values:
        if name not in known | {"gate_lower_bound", "use_full_rank_gate"}:
            linear.forbid(name, "unknown field")


def _check_heads(fields: Fields, linear: Fields, n_head: int) -> None:
    """Both attention kinds share one head count, and keys are not grouped."""
    for owner, name in ((linear, "num_heads"), (fields, "num_key_value_heads")):
        value = owner.integer(name, 1, 4096)
        if value != n_head:
            raise UnsupportedError(owner.path(name), found=value, wanted=f"num_attention_heads = {n_head}")


def _situ_linear_beta(fields: Fields) -> float:
    """SiTU's cap on the up branch; 0 stands for "no cap" where the field is absent."""
    if not fields.present("activation_situ_linear_beta"):
        return 0.0
    return fields.number("activation_situ_linear_beta", -1e6, 1e6)


def _layer_kinds(linear: Fields, n_layer: int) -> tuple[str, ...]:
    """One kind per layer from the two lists, which count layers from 1."""
    kinds: list[str | None] = [None] * n_layer
    for name, kind in (("full_attn_layers", MLA), ("kda_layers", KDA)):
        layers = linear.get(name)
        if not isinstance(layers, list):
            raise FieldTypeError(linear.path(name), found=_show(layers), wanted="a list of layer numbers")
        for number in layers:
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= n_layer:
                raise LayerListError(
                    f"{linear.path(name)} (layers are counted from 1)",
                    found=_show(number),
                    wanted=f"1 to {n_layer}",
                )
            if kinds[number - 1] is not None:
                raise LayerListError(f"{linear.path(name)}: layer {number} is listed twice")
            kinds[number - 1] = kind
    return tuple(kind or SHORT_CONV for kind in kinds)


def _show(value: Any) -> str:
    """A value as JSON-like text, cut to a length that fits one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
