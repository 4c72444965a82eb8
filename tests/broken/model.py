"""Cases with a sound container that hold no valid model: keys, layer kinds, vocabulary, tensors."""

from __future__ import annotations

from collections.abc import Iterator

from tests.broken.image import (
    F32,
    I8,
    I32,
    STRING,
    T_BF16,
    T_F16,
    T_F32,
    T_F64,
    T_MXFP4,
    T_Q4_0,
    T_Q8_0,
    U32,
    U64,
    Image,
    Key,
    array,
    key,
)
from tests.broken.tiny import (
    CHANNELS,
    EXPERTS,
    HEADS,
    HIDDEN,
    K3,
    KDA_HEAD,
    LORA,
    NOPE,
    ROPE,
    VALUE,
    VOCAB,
    Case,
    f32,
    k3_image,
    k3_keys,
    linear_image,
    matrix,
    optional_keys,
    shared_keys,
    single,
    without_token_list,
)


def architectures() -> Iterator[Case]:
    name = "general.architecture"
    yield single("architecture_missing", "MODEL_ARCHITECTURE", "missing", k3_image().without_key(name))
    for value in ("llama", "", "kimi-k3 ", "KIMI-K3", "kimi"):
        label = value.replace(" ", "_space") or "empty"
        yield single(
            f"architecture_{label}",
            "MODEL_ARCHITECTURE",
            f"found {value}",
            k3_image().set(key(name, STRING, value)),
        )
    yield single("architecture_number", "MODEL_KEY_TYPE", name, k3_image().set(key(name, U32, 3)))
    yield single("no_keys_no_tensors", "MODEL_ARCHITECTURE", "missing", Image([], []).encode())


def required_keys() -> list[Key]:
    return (shared_keys(K3) + k3_keys())[1:]


def missing_keys() -> Iterator[Case]:
    for entry in required_keys():
        name = entry.name.decode()
        yield single(f"key_missing_{name}", "MODEL_KEY_MISSING", name, k3_image().without_key(name))
    yield single(
        "key_missing_vocab_size",
        "MODEL_KEY_MISSING",
        "kimi-k3.vocab_size",
        without_token_list().without_key("kimi-k3.vocab_size"),
    )
    linear = linear_image().without_key("kimi-linear.kda.head_dim")
    yield single("key_missing_linear", "MODEL_KEY_MISSING", "kimi-linear.kda.head_dim", linear.encode())


def wrong_key_types() -> Iterator[Case]:
    """Every key of the model as a string, and as a number or array of the other kind."""
    for entry in [*required_keys(), *optional_keys()]:
        name = entry.name.decode()
        if name in ("kimi-k3.attention.value_length", "llama_k3.layer_kinds"):
            continue  # the first is not read; the second has its own cases
        wrong = {
            "string": key(name, STRING, "1"),
            "array": array(name, F32, [1.0]),
            "number": key(name, U32 if entry.value_type == F32 else F32, 1),
        }
        for kind, replacement in wrong.items():
            yield single(f"key_type_{name}_{kind}", "MODEL_KEY_TYPE", name, k3_image().set(replacement))
    heads_kv = "kimi-k3.attention.head_count_kv"
    yield single(
        "key_type_head_count_kv_scalar",
        "MODEL_KEY_TYPE",
        "array of integers",
        k3_image().set(key(heads_kv, U32, 1)),
    )
    yield single(
        "key_type_layer_kinds",
        "MODEL_KEY_TYPE",
        "array of strings",
        k3_image().set(key("llama_k3.layer_kinds", STRING, "kda")),
    )


INTEGER_VALUES = {
    "block_count": [0, 513, 2**32 - 1],
    "context_length": [0, 2**31],
    "embedding_length": [0, 2**21, 2**32 - 1],
    "feed_forward_length": [0, 2**32 - 1],
    "leading_dense_block_count": [3, 2**32 - 1],
    "attention.head_count": [0, 2**32 - 1],
    "attention.q_lora_rank": [2**32 - 1],
    "attention.kv_lora_rank": [0, 2**32 - 1],
    "attention.key_length": [0, 16, 72, 2**32 - 1],
    "attention.key_length_mla": [0, ROPE, 2**32 - 1],
    "attention.value_length_mla": [0, 2**32 - 1],
    "rope.dimension_count": [0, 2**32 - 1],
    "ssm.conv_kernel": [0, 1, 17, 2**32 - 1],
    "kda.head_dim": [0, 2**32 - 1],
    "expert_count": [0, 4097, 2**32 - 1],
    "expert_used_count": [0, EXPERTS + 1, 2**32 - 1],
    "expert_shared_count": [0, 2**32 - 1],
    "expert_feed_forward_length": [0, 2**32 - 1],
    "expert_latent_length": [2**32 - 1],
    "expert_gating_func": [0, 1, 3],
    "expert_group_count": [2, 8],
    "expert_group_used_count": [2],
    "attn_res.block_size": [2**32 - 1],
}
NAN, INF = float("nan"), float("inf")
FLOAT_VALUES = {
    "kimi-k3.attention.layer_norm_rms_epsilon": [0.0, -1e-5, 2.0, NAN, INF],
    "kimi-k3.kda.gate_lower_bound": [0.0, 5.0, NAN, -INF],
    "kimi-k3.expert_weights_scale": [0.0, -1.0, NAN, INF],
    "kimi-k3.activation.situ_beta": [0.0, -4.0, NAN, INF],
    "kimi-k3.activation.situ_linear_beta": [NAN, INF, -INF],
    "llama_k3.lora_norm_epsilon": [0.0, -1e-6, NAN, INF],
    "llama_k3.l2_norm_epsilon": [0.0, -1e-6, NAN, INF],
}


def wrong_values() -> Iterator[Case]:
    for short, values in INTEGER_VALUES.items():
        for value in values:
            name = f"kimi-k3.{short}"
            yield single(
                f"value_{name}_{value}",
                "MODEL_KEY_VALUE",
                f"{name}: found {value}",
                k3_image().set(key(name, U32, value)),
            )
    for name, floats in FLOAT_VALUES.items():
        for number in floats:
            yield single(
                f"value_{name}_{number}",
                "MODEL_KEY_VALUE",
                f"{name}: found",
                k3_image().set(key(name, F32, number)),
            )
    yield single(
        "value_negative",
        "MODEL_KEY_VALUE",
        "found -1",
        k3_image().set(key("kimi-k3.expert_count", I8, -1)),
    )
    yield single(
        "value_u64",
        "MODEL_KEY_VALUE",
        "kimi-k3.expert_count",
        k3_image().set(key("kimi-k3.expert_count", U64, 2**64 - 1)),
    )
    for name, entry in {
        "type": key("kimi-k3.rope.scaling.type", STRING, "yarn"),
        "type_number": key("kimi-k3.rope.scaling.type", U32, 1),
        "factor": key("kimi-k3.rope.scaling.factor", F32, 32.0),
        "factor_array": array("kimi-k3.rope.scaling.factor", F32, []),
        "original_length": key("kimi-k3.rope.scaling.original_context_length", U32, 4096),
    }.items():
        yield single(
            f"value_rope_scaling_{name}",
            "MODEL_KEY_VALUE",
            "rope.scaling",
            k3_image().set(entry),
        )


def layer_kinds() -> Iterator[Case]:
    heads_kv, kinds = "kimi-k3.attention.head_count_kv", "llama_k3.layer_kinds"
    for name, counts in {"short": [0], "long": [0, 1, 1], "empty": []}.items():
        yield single(
            f"layer_kinds_counts_{name}",
            "MODEL_LAYER_KINDS",
            f"{heads_kv}: elements: found {len(counts)}",
            k3_image().set(array(heads_kv, I32, list(counts))),
        )
    for name, counts in {"negative": [0, -1], "many": [0, HEADS + 1]}.items():
        yield single(
            f"layer_kinds_counts_{name}",
            "MODEL_LAYER_KINDS",
            "layer ",
            k3_image().set(array(heads_kv, I32, list(counts))),
        )
    for name, words, mention in (
        ("short_conv", ["short_conv", "mla"], "layer 0"),
        ("short_conv_last", ["kda", "short_conv"], "layer 1"),
        ("contradiction", ["kda", "kda"], "layer 1"),
        ("swapped", ["mla", "kda"], "layer 0"),
        ("unknown", ["kda", "gdn"], "found gdn"),
        ("too_few", ["kda"], "found 1, wanted 2"),
        ("too_many", ["kda", "mla", "mla"], "found 3, wanted 2"),
    ):
        yield single(
            f"layer_kinds_{name}",
            "MODEL_LAYER_KINDS",
            mention,
            k3_image().set(array(kinds, STRING, list(words))),
        )
    yield single(
        "layer_kinds_without_tensors",
        "MODEL_TENSOR_MISSING",
        "blk.1.attn_q.weight",
        k3_image().without_key(kinds).set(array(heads_kv, I32, [0, 0])),
    )


def vocabularies() -> Iterator[Case]:
    tokens, types = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"

    def vocabulary(name: str, mention: str, entry: Key, status: str = "MODEL_VOCABULARY") -> Case:
        return single(f"vocabulary_{name}", status, mention, k3_image().set(entry))

    yield vocabulary("empty", tokens, array(tokens, STRING, []))
    yield vocabulary("short", "wanted 15", array(tokens, STRING, ["a"] * (VOCAB - 1)))
    yield vocabulary("size", "found 17, wanted 16", key("kimi-k3.vocab_size", U32, VOCAB + 1))
    yield vocabulary("tokens_type", tokens, array(tokens, U32, [1] * VOCAB), "MODEL_KEY_TYPE")
    yield vocabulary("tokens_scalar", tokens, key(tokens, STRING, "abc"), "MODEL_KEY_TYPE")
    yield vocabulary("types_short", types, array(types, I32, [1] * (VOCAB - 1)))
    yield vocabulary("types_long", types, array(types, I32, [1] * (VOCAB + 1)))
    yield vocabulary("types_unknown", "token 15", array(types, I32, [1] * (VOCAB - 1) + [7]))
    yield vocabulary("types_negative", "token 0", array(types, I32, [-1] + [1] * (VOCAB - 1)))
    yield vocabulary("types_floats", types, array(types, F32, [1.0] * VOCAB), "MODEL_KEY_TYPE")
    for special in ("bos", "eos", "padding", "unknown", "eot", "mask"):
        name = f"tokenizer.ggml.{special}_token_id"
        for value in (VOCAB, 2**31, 2**32 - 1):
            yield vocabulary(f"{special}_{value}", f"{name}: found {value}", key(name, U32, value))
        yield vocabulary(f"{special}_negative", f"{name}: found -1", key(name, I32, -1))
        yield vocabulary(f"{special}_string", name, key(name, STRING, "a"), "MODEL_KEY_TYPE")
        yield vocabulary(f"{special}_array", name, array(name, U32, [1]), "MODEL_KEY_TYPE")
    long_name = "tokenizer.ggml." + "x" * 300 + "_token_id"
    yield vocabulary("long_key", "found 99", key(long_name, U32, 99))


OPTIONAL_TENSORS = ("attn_gate.weight", "ffn_routed_norm.weight")


def first_of_each_kind() -> list[str]:
    """Names of the model's tensors, one for each place in a layer."""
    seen: dict[str, str] = {}
    for tensor in k3_image().tensors:
        name = tensor.name.decode()
        place = name.split(".", 2)[-1] if name.startswith("blk.") else name
        is_mla_output = name == "blk.1.attn_output.weight"
        seen.setdefault("mla " + place if is_mla_output else place, name)
    return list(seen.values())


def missing_and_extra_tensors() -> Iterator[Case]:
    for name in first_of_each_kind():
        if not name.endswith(OPTIONAL_TENSORS):
            yield single(
                f"tensor_missing_{name}",
                "MODEL_TENSOR_MISSING",
                name,
                k3_image().without_tensor(name),
            )
    yield single(
        "tensor_missing_all",
        "MODEL_TENSOR_MISSING",
        "token_embd.weight",
        k3_image().update(tensors=[]),
    )
    extra = {
        "unknown": f32("surprise.weight", 32),
        "layer_beyond": f32("blk.2.attn_norm.weight", HIDDEN),
        "low_rank_gate": matrix("blk.0.ssm_g_a.weight", HIDDEN, KDA_HEAD),
        "plain_query": matrix("blk.1.attn_q.weight", HIDDEN, HEADS * (NOPE + ROPE)),
        "dense_in_moe": matrix("blk.1.ffn_up.weight", HIDDEN, 32),
        "fused_qkv": matrix("blk.0.attn_qkv.weight", HIDDEN, 3 * CHANNELS),
        "kda_in_mla": f32("blk.1.ssm_a", HEADS),
        "joint_kv_b": matrix("blk.1.attn_kv_b.weight", LORA, HEADS * (NOPE + VALUE)),
        "bias": f32("blk.1.attn_q_a.bias", LORA),
        "rope_factors": f32("rope_freqs.weight", ROPE // 2),
    }
    for name, tensor in extra.items():
        yield single(
            f"tensor_extra_{name}",
            "MODEL_TENSOR_EXTRA",
            tensor.name.decode(),
            k3_image().append(tensor),
        )
    yield single(
        "tensor_extra_joint_form_only",
        "MODEL_TENSOR_EXTRA",
        "blk.1.attn_kv_b.weight",
        k3_image()
        .without_tensor("blk.1.attn_k_b.weight", "blk.1.attn_v_b.weight")
        .append(extra["joint_kv_b"]),
    )
    for case, name in (
        ("residual", "blk.0.attn_res_score.weight"),
        ("latent", "blk.1.ffn_routed_down.weight"),
    ):
        image = linear_image()
        image.tensors.append(k3_image().tensor(name))
        yield single(f"tensor_extra_linear_{case}", "MODEL_TENSOR_EXTRA", name, image.encode())


def wrong_shapes() -> Iterator[Case]:
    """Each tensor with each dimension doubled, and with one dimension more."""
    for name in first_of_each_kind():
        dims = k3_image().tensor(name).dims
        for axis in range(min(4, len(dims) + 1)):
            wrong = [*dims, 1][: max(len(dims), axis + 1)]
            wrong[axis] *= 2
            yield single(
                f"tensor_shape_{name}_{axis}",
                "MODEL_TENSOR_SHAPE",
                f"tensor {name}: dimension {axis}: found {wrong[axis]}, wanted {wrong[axis] // 2}",
                k3_image().update_tensor(name, dims=wrong),
            )
    matrix_name = "blk.1.attn_kv_a_mqa.weight"
    yield single(
        "tensor_shape_transposed",
        "MODEL_TENSOR_SHAPE",
        "dimension 0: found 48, wanted 32",
        k3_image().update_tensor(matrix_name, dims=[48, 32], tensor_type=T_BF16),
    )


def wrong_tensor_types() -> Iterator[Case]:
    for name in first_of_each_kind():
        tensor = k3_image().tensor(name)
        wrong = {"f64": T_F64}
        if tensor.tensor_type == T_F32:
            wrong["f16"] = T_F16
        if tensor.dims[0] % 32 == 0:
            wrong["q4_0"] = T_Q4_0
        if tensor.tensor_type == T_Q8_0:
            wrong["mxfp4"] = T_MXFP4
        for label, tensor_type in wrong.items():
            yield single(
                f"tensor_class_{name}_{label}",
                "MODEL_TENSOR_TYPE",
                f"tensor {name}: type: found {label}",
                k3_image().update_tensor(name, tensor_type=tensor_type),
            )


def model_cases() -> Iterator[Case]:
    yield from architectures()
    yield from missing_keys()
    yield from wrong_key_types()
    yield from wrong_values()
    yield from layer_kinds()
    yield from vocabularies()
    yield from missing_and_extra_tensors()
    yield from wrong_shapes()
    yield from wrong_tensor_types()
