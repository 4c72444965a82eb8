"""The tiny valid models that the cases break, and what a case is."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.broken.image import (
    BOOL,
    F32,
    I32,
    STRING,
    T_BF16,
    T_F32,
    T_MXFP4,
    T_Q8_0,
    U32,
    Image,
    Key,
    Tensor,
    array,
    key,
)

MAX_FILE_SIZE = 64 * 1024

# Sizes of the tiny model. Rows are one block of 32, so that every tensor can be quantised.
HIDDEN, HEADS, KDA_HEAD, TAPS, VOCAB = 32, 2, 16, 4, 16
CHANNELS = HEADS * KDA_HEAD
LORA, NOPE, ROPE, VALUE = 32, 32, 16, 16
EXPERTS, EXPERT_FF, LATENT = 2, 32, 32
LAYERS = ["kda", "mla"]  # the first with a dense FFN, the second with experts
K3, LINEAR = "kimi-k3", "kimi-linear"


@dataclass
class Case:
    """`files`: path -> bytes (None: a folder); `load`: the path that is loaded, which may be missing."""

    load: str
    status: str
    mention: str = ""  # has to stand in the message
    files: dict[str, bytes | None] = field(default_factory=dict)


def single(name: str, status: str, mention: str, content: Image | bytes) -> Case:
    """A case of one file; `status` without the prefix LLAMA_K3_."""
    path = f"{name}.gguf"
    raw = content.encode() if isinstance(content, Image) else content
    return Case(path, f"LLAMA_K3_{status}", mention, {path: raw})


def tokenizer_keys() -> list[Key]:
    return [
        key("tokenizer.ggml.model", STRING, "gpt2"),
        key("tokenizer.ggml.pre", STRING, "kimi-k2"),
        array("tokenizer.ggml.tokens", STRING, [chr(ord("a") + i) for i in range(VOCAB)]),
        array("tokenizer.ggml.token_type", I32, [1] * (VOCAB - 3) + [3, 3, 5]),
        key("tokenizer.ggml.bos_token_id", U32, VOCAB - 3),
        key("tokenizer.ggml.eos_token_id", U32, VOCAB - 2),
        key("tokenizer.ggml.padding_token_id", U32, VOCAB - 1),
    ]


def shared_keys(arch: str) -> list[Key]:
    """Keys that both architectures require."""
    return [
        key("general.architecture", STRING, arch),
        key(f"{arch}.block_count", U32, len(LAYERS)),
        key(f"{arch}.context_length", U32, 4096),
        key(f"{arch}.embedding_length", U32, HIDDEN),
        key(f"{arch}.feed_forward_length", U32, 32),
        key(f"{arch}.attention.head_count", U32, HEADS),
        array(f"{arch}.attention.head_count_kv", I32, [int(kind == "mla") for kind in LAYERS]),
        key(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5),
        key(f"{arch}.attention.kv_lora_rank", U32, LORA),
        key(f"{arch}.attention.key_length", U32, LORA + ROPE),
        key(f"{arch}.attention.key_length_mla", U32, NOPE + ROPE),
        key(f"{arch}.attention.value_length_mla", U32, VALUE),
        key(f"{arch}.rope.dimension_count", U32, ROPE),
        key(f"{arch}.ssm.conv_kernel", U32, TAPS),
        key(f"{arch}.kda.head_dim", U32, KDA_HEAD),
        key(f"{arch}.expert_count", U32, EXPERTS),
        key(f"{arch}.expert_used_count", U32, 1),
        key(f"{arch}.expert_shared_count", U32, 1),
        key(f"{arch}.expert_feed_forward_length", U32, EXPERT_FF),
        key(f"{arch}.expert_gating_func", U32, 2),
    ]


def k3_keys() -> list[Key]:
    """Keys that only Kimi-K3 requires."""
    return [
        key("kimi-k3.activation.situ_beta", F32, 4.0),
        key("kimi-k3.activation.situ_linear_beta", F32, 25.0),
        key("kimi-k3.attn_res.block_size", U32, 2),
    ]


def optional_keys() -> list[Key]:
    return [
        key("kimi-k3.vocab_size", U32, VOCAB),
        key("kimi-k3.attention.value_length", U32, LORA),
        key("kimi-k3.attention.q_lora_rank", U32, LORA),
        key("kimi-k3.kda.gate_lower_bound", F32, -5.0),
        key("kimi-k3.leading_dense_block_count", U32, 1),
        key("kimi-k3.expert_group_used_count", U32, 1),
        key("kimi-k3.expert_weights_scale", F32, 1.0),
        key("kimi-k3.expert_weights_norm", BOOL, True),
        key("kimi-k3.expert_latent_length", U32, LATENT),
        array("llama_k3.layer_kinds", STRING, list(LAYERS)),
        key("llama_k3.lora_norm_epsilon", F32, 1e-6),
        key("llama_k3.l2_norm_epsilon", F32, 1e-6),
    ]


def f32(name: str, *dims: int) -> Tensor:
    return Tensor(name.encode(), list(dims), T_F32)


def matrix(name: str, *dims: int) -> Tensor:
    """Q8_0 where the rows are whole blocks, else BF16."""
    return Tensor(name.encode(), list(dims), T_Q8_0 if dims[0] % 32 == 0 else T_BF16)


def experts(name: str, *dims: int) -> Tensor:
    return Tensor(name.encode(), list(dims), T_MXFP4)


def kda_tensors(b: str, full_gate: bool) -> list[Tensor]:
    gate = (
        [matrix(b + "ssm_g.weight", HIDDEN, CHANNELS)]
        if full_gate
        else [
            matrix(b + "ssm_g_a.weight", HIDDEN, KDA_HEAD),
            matrix(b + "ssm_g_b.weight", KDA_HEAD, CHANNELS),
        ]
    )
    return [
        *(matrix(f"{b}attn_{x}.weight", HIDDEN, CHANNELS) for x in "qkv"),
        *(f32(f"{b}ssm_conv1d_{x}.weight", TAPS, 1, CHANNELS, 1) for x in "qkv"),
        matrix(b + "ssm_f_a.weight", HIDDEN, KDA_HEAD),
        matrix(b + "ssm_f_b.weight", KDA_HEAD, CHANNELS),
        matrix(b + "ssm_beta.weight", HIDDEN, HEADS),
        f32(b + "ssm_a", HEADS) if full_gate else f32(b + "ssm_a", 1, HEADS),
        f32(b + "ssm_dt.bias", CHANNELS),
        *gate,
        f32(b + "ssm_norm.weight", KDA_HEAD),
        matrix(b + "attn_output.weight", CHANNELS, HIDDEN),
    ]


def mla_tensors(b: str, q_lora: bool) -> list[Tensor]:
    query = HEADS * (NOPE + ROPE)
    q = (
        [
            matrix(b + "attn_q_a.weight", HIDDEN, LORA),
            f32(b + "attn_q_a_norm.weight", LORA),
            matrix(b + "attn_q_b.weight", LORA, query),
            matrix(b + "attn_gate.weight", HIDDEN, HEADS * VALUE),
        ]
        if q_lora
        else [matrix(b + "attn_q.weight", HIDDEN, query)]
    )
    return [
        *q,
        matrix(b + "attn_kv_a_mqa.weight", HIDDEN, LORA + ROPE),
        f32(b + "attn_kv_a_norm.weight", LORA),
        matrix(b + "attn_k_b.weight", NOPE, LORA, HEADS),
        matrix(b + "attn_v_b.weight", LORA, VALUE, HEADS),
        matrix(b + "attn_output.weight", HEADS * VALUE, HIDDEN),
    ]


def ffn_tensors(b: str, dense: bool, latent: bool) -> list[Tensor]:
    if dense:
        return [matrix(f"{b}ffn_{x}.weight", HIDDEN, 32) for x in ("gate", "up", "down")]
    width = LATENT if latent else HIDDEN
    routed = [
        matrix(b + "ffn_routed_down.weight", HIDDEN, LATENT),
        f32(b + "ffn_routed_norm.weight", LATENT),
        matrix(b + "ffn_routed_up.weight", LATENT, HIDDEN),
    ]
    return [
        f32(b + "ffn_gate_inp.weight", HIDDEN, EXPERTS),
        f32(b + "exp_probs_b.bias", EXPERTS),
        experts(b + "ffn_gate_exps.weight", width, EXPERT_FF, EXPERTS),
        experts(b + "ffn_up_exps.weight", width, EXPERT_FF, EXPERTS),
        experts(b + "ffn_down_exps.weight", EXPERT_FF, width, EXPERTS),
        *(routed if latent else []),
        *(matrix(f"{b}ffn_{x}_shexp.weight", HIDDEN, EXPERT_FF) for x in ("gate", "up", "down")),
    ]


def model_tensors(k3: bool) -> list[Tensor]:
    """All tensors of the tiny model, either as Kimi-K3 or as Kimi-Linear."""
    out = [matrix("token_embd.weight", HIDDEN, VOCAB)]
    for i, kind in enumerate(LAYERS):
        b = f"blk.{i}."
        out += [f32(b + "attn_norm.weight", HIDDEN), f32(b + "ffn_norm.weight", HIDDEN)]
        if k3:
            out += [f32(b + "attn_res_score.weight", HIDDEN), f32(b + "ffn_res_score.weight", HIDDEN)]
        out += kda_tensors(b, full_gate=k3) if kind == "kda" else mla_tensors(b, q_lora=k3)
        out += ffn_tensors(b, dense=i == 0, latent=k3)
    out += [f32("output_norm.weight", HIDDEN), matrix("output.weight", HIDDEN, VOCAB)]
    return [*out, f32("output_res_score.weight", HIDDEN)] if k3 else out


def k3_image() -> Image:
    keys = shared_keys(K3) + k3_keys() + optional_keys() + tokenizer_keys()
    return Image(keys, model_tensors(k3=True))


def linear_image() -> Image:
    dense = key("kimi-linear.leading_dense_block_count", U32, 1)
    return Image([*shared_keys(LINEAR), dense, *tokenizer_keys()], model_tensors(k3=False))


def without_token_list() -> Image:
    """Then the vocabulary's size comes from the key vocab_size."""
    image = k3_image()
    return image.update(keys=[k for k in image.keys if not k.name.startswith(b"tokenizer.")])
