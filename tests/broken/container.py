"""Cases that break the GGUF container: magic, version, counts, strings, types, alignment, tensor table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.broken.image import (
    ARRAY,
    F32,
    I32,
    STRING,
    T_F32,
    T_F64,
    U32,
    U64,
    Image,
    Key,
    Tensor,
    array,
    key,
    string,
    u32,
    u64,
)
from tests.broken.tiny import (
    HIDDEN,
    LAYERS,
    MAX_FILE_SIZE,
    VOCAB,
    Case,
    f32,
    k3_image,
    single,
)


def unopenable() -> Iterator[Case]:
    yield Case("open_missing.gguf", "LLAMA_K3_FILE_OPEN", "open_missing.gguf")
    yield Case("open_folder.gguf", "LLAMA_K3_FILE_OPEN", "a directory", {"open_folder.gguf": None})


def truncated() -> Iterator[Case]:
    image = k3_image()
    valid = image.encode()
    at = image.sections
    last = image.tensors[-1]
    cuts = {
        "empty": (0, "magic"),
        "magic": (2, "magic"),
        "version": (at["version"] + 2, "version"),
        "tensor_count": (at["tensor count"] + 4, "number of tensors"),
        "key_count": (at["key count"] + 4, "number of keys"),
        "key_length": (at["tensors"] - len(image.keys[-1].encode()) + 4, "key"),
        "key_name": (at["tensors"] - len(image.keys[-1].encode()) + 12, "key"),
        "key_type": (at["tensors"] - 6, "key tokenizer.ggml.padding_token_id"),
        "value": (at["tensors"] - 2, "key tokenizer.ggml.padding_token_id"),
        "array": (valid.index(b"tokenizer.ggml.tokens") + 60, "key tokenizer.ggml.tokens"),
        "tensor_name": (at["padding"] - len(last.encode(0)) + 12, "tensor"),
        "tensor_dims": (at["padding"] - 16, "tensor output_res_score.weight"),
        "tensor_type": (at["padding"] - 10, "tensor output_res_score.weight"),
        "tensor_offset": (at["padding"] - 1, "tensor output_res_score.weight"),
        "padding": (at["padding"], "tensor data"),
        "data_start": (at["data"], "tensor data"),
        "data_middle": ((at["data"] + len(valid)) // 2, "tensor data"),
        "data_last_byte": (len(valid) - 1, "tensor data"),
    }
    for name, (size, mention) in cuts.items():
        yield single(f"truncated_{name}", "FILE_TRUNCATED", mention, valid[:size])


def headers() -> Iterator[Case]:
    for name, magic in {
        "ggml": b"GGML",
        "lower": b"gguf",
        "last": b"GGUX",
        "zero": bytes(4),
        "elf": b"\x7fELF",
    }.items():
        yield single(f"magic_{name}", "FILE_MAGIC", "magic", k3_image().update(magic=magic))
    yield single("magic_safetensors", "FILE_MAGIC", "magic", u64(2) + b"{}")
    for version in (0, 1, 4, 3 << 24, 2**32 - 1):
        yield single(
            f"version_{version}",
            "FILE_VERSION",
            f"found {version}",
            k3_image().update(version=version),
        )
    for count in (2**63, 2**64 - 1, 2**40, 2**32, 100_000, 8193):
        yield single(
            f"count_keys_{count}",
            "FILE_COUNT",
            f"number of keys: found {count}",
            k3_image().update(n_keys=count),
        )
        yield single(
            f"count_tensors_{count}",
            "FILE_COUNT",
            f"number of tensors: found {count}",
            k3_image().update(n_tensors=count),
        )
    for count in (2**63, 2**61 + 1, 2**32, 2**24 + 1):
        yield single(
            f"count_array_{count}",
            "FILE_COUNT",
            "key many: elements: found",
            k3_image().insert(array("many", U32, [1, 2, 3], count)),
        )
        yield single(
            f"count_string_array_{count}",
            "FILE_COUNT",
            "key many: elements: found",
            k3_image().insert(array("many", STRING, ["a", "b"], count)),
        )


def key_strings() -> Iterator[Case]:
    for length in (2**64 - 1, 2**63, 2**32, 2**30 + 1, MAX_FILE_SIZE * 2):
        yield single(
            f"string_key_length_{length}",
            "FILE_STRING",
            f"found {length}",
            k3_image().insert(Key(b"name", U32, u32(1), name_length=length)),
        )
        yield single(
            f"string_value_length_{length}",
            "FILE_STRING",
            "key text",
            k3_image().insert(Key(b"text", STRING, string("abc", length))),
        )
        yield single(
            f"string_element_length_{length}",
            "FILE_STRING",
            "key texts",
            k3_image().insert(
                Key(b"texts", ARRAY, u32(STRING) + u64(2) + string("abc") + string("d", length))
            ),
        )
    yield single("string_key_empty", "FILE_STRING", "empty", k3_image().insert(key("", U32, 1)))
    yield single(
        "string_key_zero_byte", "FILE_STRING", "0 byte", k3_image().insert(Key(b"a\0b", U32, u32(1)))
    )
    yield single(
        "string_value_zero_byte",
        "FILE_STRING",
        "key text",
        k3_image().insert(Key(b"text", STRING, string(b"a\0"))),
    )


def value_types() -> Iterator[Case]:
    for value_type in (13, 255, 2**31, 2**32 - 1):
        yield single(
            f"value_type_{value_type}",
            "FILE_VALUE_TYPE",
            f"found {value_type}",
            k3_image().insert(Key(b"odd", value_type, u32(1))),
        )
        yield single(
            f"value_type_array_{value_type}",
            "FILE_VALUE_TYPE",
            f"found {value_type}",
            k3_image().insert(Key(b"odd", ARRAY, u32(value_type) + u64(1) + u32(1))),
        )
    nested = u32(ARRAY) + u64(1) + u32(U32) + u64(1) + u32(7)
    yield single(
        "value_type_nested_array",
        "FILE_VALUE_TYPE",
        "found 9 (array)",
        k3_image().insert(Key(b"odd", ARRAY, nested)),
    )


def duplicates() -> Iterator[Case]:
    yield single(
        "duplicate_key",
        "FILE_DUPLICATE",
        "kimi-k3.block_count",
        k3_image().insert(key("kimi-k3.block_count", U32, len(LAYERS))),
    )
    yield single(
        "duplicate_key_other_type",
        "FILE_DUPLICATE",
        "general.architecture",
        k3_image().insert(key("general.architecture", U32, 1)),
    )
    yield single(
        "duplicate_tensor",
        "FILE_DUPLICATE",
        "output_norm.weight",
        k3_image().append(f32("output_norm.weight", HIDDEN)),
    )


def alignments() -> Iterator[Case]:
    for value in (0, 1, 3, 16, 33, 2**32 - 1):
        yield single(
            f"alignment_{value}",
            "FILE_ALIGNMENT",
            f"found {value}",
            k3_image().insert(key("general.alignment", U32, value)),
        )
    for value_type, name in ((U64, "u64"), (I32, "i32"), (F32, "f32")):
        yield single(
            f"alignment_{name}",
            "FILE_ALIGNMENT",
            f"found {name}",
            k3_image().insert(key("general.alignment", value_type, 32)),
        )
    yield single(
        "alignment_string",
        "FILE_ALIGNMENT",
        "found str",
        k3_image().insert(key("general.alignment", STRING, "32")),
    )
    yield single(
        "alignment_array",
        "FILE_ALIGNMENT",
        "found arr",
        k3_image().insert(array("general.alignment", U32, [32])),
    )
    yield single(
        "alignment_larger_than_file",
        "FILE_TRUNCATED",
        "tensor data",
        Image([key("general.alignment", U32, 2**31)], [f32("token_embd.weight", 32)]),
    )


def with_tensor(**fields: Any) -> Image:
    """The valid model with fields of its first tensor replaced."""
    return k3_image().update_tensor(0, **fields)


def tensor_names() -> Iterator[Case]:
    for length in (2**64 - 1, 2**32, MAX_FILE_SIZE * 2):
        yield single(
            f"string_tensor_length_{length}",
            "FILE_STRING",
            f"found {length}",
            with_tensor(name_length=length),
        )
    yield single("string_tensor_empty", "FILE_STRING", "empty", with_tensor(name=b""))
    yield single("string_tensor_zero_byte", "FILE_STRING", "0 byte", with_tensor(name=b"token\0embd"))
    yield single("string_tensor_64_bytes", "FILE_STRING", "found 64", with_tensor(name=b"t" * 64))


def tensor_dims() -> Iterator[Case]:
    size = HIDDEN * VOCAB
    for n_dims in (0, 5, 2**32 - 1):
        yield single(
            f"dims_count_{n_dims}", "FILE_TENSOR_DIMS", f"found {n_dims}", with_tensor(n_dims=n_dims)
        )
    for name, dims in {"zero": [HIDDEN, 0], "negative": [HIDDEN, -1], "most_negative": [-(2**63), 1]}.items():
        yield single(
            f"dims_{name}",
            "FILE_TENSOR_DIMS",
            "token_embd.weight: dimension",
            with_tensor(dims=dims, size=size),
        )
    yield single(
        "dims_half_block", "FILE_TENSOR_DIMS", "multiple of 32", with_tensor(dims=[48, VOCAB], size=size)
    )
    for name, dims in {
        "product": [2**31, 2**31, 2**31],
        "product_wraps_to_0": [2**32, 2**32],
        "product_wraps_to_32": [2**61 + 4, 8],
        "largest": [2**63 - 1],
        "four": [2**16, 2**16, 2**16, 2**16],
    }.items():
        yield single(
            f"size_{name}", "FILE_SIZE", "fewer than 2^62", with_tensor(dims=dims, tensor_type=T_F32, size=0)
        )
    yield single(
        "size_bytes",
        "FILE_SIZE",
        "less than 2^62 bytes",
        with_tensor(dims=[2**61], tensor_type=T_F64, size=0),
    )
    yield single(
        "size_bytes_in_64_bits",
        "FILE_SIZE",
        "less than 2^62 bytes",
        with_tensor(dims=[2**60], tensor_type=T_F64, size=0),
    )
    yield single("size_sum", "FILE_SIZE", "end of its data", two_exbibytes_twice())
    yield single("size_beyond_file", "FILE_TRUNCATED", "tensor data", one_large_tensor())


def one_large_tensor() -> Image:
    return k3_image().update(tensors=[Tensor(b"token_embd.weight", [HIDDEN, 2**40], T_F32, size=0)])


def two_exbibytes_twice() -> Image:
    """Two tensors of 2^61 bytes: each fits, both do not."""
    large = {"dims": [2**59], "tensor_type": T_F32, "size": 0}
    return k3_image().update_tensor(0, **large).update_tensor(1, **large, offset=2**61)


def tensor_types_and_offsets() -> Iterator[Case]:
    for type_field in (4, 5, 31, 36, 43, 255, 2**31, 2**32 - 1):
        yield single(
            f"tensor_type_{type_field}",
            "FILE_TENSOR_TYPE",
            f"found {type_field}",
            with_tensor(type_field=type_field),
        )
    for name, offset in {"shifted": 32, "odd": 1, "huge": 2**63, "negative": 2**64 - 32}.items():
        yield single(f"offset_{name}", "FILE_OFFSET", f"found {offset}", with_tensor(offset=offset))
    yield single(
        "offset_overlap",
        "FILE_OFFSET",
        "blk.0.attn_norm.weight",
        k3_image().update_tensor(1, offset=0),
    )
    yield single(
        "offset_gap",
        "FILE_OFFSET",
        "output_res_score.weight",
        k3_image().update_tensor(-1, offset=MAX_FILE_SIZE),
    )


def container_cases() -> Iterator[Case]:
    yield from unopenable()
    yield from truncated()
    yield from headers()
    yield from key_strings()
    yield from value_types()
    yield from duplicates()
    yield from alignments()
    yield from tensor_names()
    yield from tensor_dims()
    yield from tensor_types_and_offsets()
