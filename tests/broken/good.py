"""Files that load: variants that the format and both architectures allow."""

from __future__ import annotations

from collections.abc import Iterator

from tests.broken.image import (
    F32,
    F64,
    I64,
    STRING,
    T_BF16,
    T_F16,
    T_F32,
    U8,
    U32,
    U64,
    Image,
    array,
    key,
)
from tests.broken.tiny import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    Case,
    k3_image,
    linear_image,
    optional_keys,
    single,
    without_token_list,
)


def other_number_types() -> Image:
    return (
        k3_image()
        .set(key("kimi-k3.block_count", U64, len(LAYERS)))
        .set(key("kimi-k3.embedding_length", I64, HIDDEN))
        .set(key("kimi-k3.expert_count", U8, EXPERTS))
        .set(key("kimi-k3.attention.layer_norm_rms_epsilon", F64, 1e-5))
        .set(array("kimi-k3.attention.head_count_kv", U32, [0, 1]))
    )


def without_optional() -> Image:
    """Without the keys and tensors that have a default or a form that does without."""
    structural = ("attention.q_lora_rank", "leading_dense_block_count", "expert_latent_length")
    image = k3_image().without_tensor("blk.1.attn_gate.weight", "blk.1.ffn_routed_norm.weight")
    for entry in optional_keys():
        name = entry.name.decode()
        if not name.endswith(structural):
            image.without_key(name)
    return image


def good_cases() -> Iterator[Case]:
    valid = k3_image().encode()
    yield single("good_k3", "OK", "", valid)
    yield single("good_linear", "OK", "", linear_image().encode())
    yield single("good_version_2", "OK", "", k3_image().update(version=2))
    yield single("good_number_types", "OK", "", other_number_types())
    yield single("good_without_token_list", "OK", "", without_token_list())
    yield single(
        "good_alignment_128",
        "OK",
        "",
        k3_image().set(key("general.alignment", U32, 128)).update(alignment=128),
    )
    yield single("good_without_optional", "OK", "", without_optional())
    yield single(
        "good_no_rope_scaling",
        "OK",
        "",
        k3_image()
        .set(key("kimi-k3.rope.scaling.type", STRING, "none"))
        .set(key("kimi-k3.rope.scaling.factor", F32, 1.0)),
    )
    for tensor_type, name in ((T_F32, "f32"), (T_F16, "f16"), (T_BF16, "bf16")):
        yield single(
            f"good_{name}_experts",
            "OK",
            "",
            k3_image().update_tensor("blk.1.ffn_up_exps.weight", tensor_type=tensor_type),
        )
