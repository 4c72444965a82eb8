"""Cases of split models: parts missing, swapped or of another model, and wrong split keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.broken.image import (
    F32,
    I32,
    STRING,
    U16,
    Image,
    Key,
    array,
    key,
)
from tests.broken.tiny import (
    Case,
    k3_image,
    single,
)


def split_keys(no: int, count: int, n_tensors: int) -> list[Key]:
    return [
        key("split.no", U16, no),
        key("split.count", U16, count),
        key("split.tensors.count", I32, n_tensors),
    ]


def split_images(count: int = 3) -> list[Image]:
    """The valid model in `count` parts, metadata in the first."""
    whole = k3_image()
    n = len(whole.tensors)
    bounds = [n * i // count for i in range(count + 1)]
    return [
        Image(
            [*(whole.keys if no == 0 else []), *split_keys(no, count, n)],
            whole.tensors[bounds[no] : bounds[no + 1]],
        )
        for no in range(count)
    ]


def part_name(folder: str, no: int, count: int) -> str:
    return f"{folder}/model-{no + 1:05d}-of-{count:05d}.gguf"


def split_case(
    folder: str,
    status: str,
    mention: str,
    change: Callable[[list[Image]], object] | None = None,
    load: int = 0,
    drop: tuple[int, ...] = (),
) -> Case:
    """The parts after `change`, without the files in `drop`; part `load` is loaded."""
    images = split_images()
    if change:
        change(images)
    count = len(images)
    files = {
        part_name(folder, no, count): image.encode() for no, image in enumerate(images) if no not in drop
    }
    return Case(part_name(folder, load, count), f"LLAMA_K3_{status}", mention, dict(files))


def swap(images: list[Image], a: int, b: int) -> None:
    images[a], images[b] = images[b], images[a]


def replace(images: list[Image], other: Image) -> None:
    """`other` in place of the second part."""
    images[1] = other


def foreign_part(images: list[Image]) -> None:
    """Part 1 of a model with one tensor more."""
    images[1].set(key("split.tensors.count", I32, len(k3_image().tensors) + 1))


def splits() -> Iterator[Case]:
    for load in range(3):
        yield split_case(f"good_split_{load}", "OK", "", load=load)
        for drop in range(3):
            if drop != load:
                yield split_case(
                    f"split_missing_{drop}_of_{load}",
                    "SPLIT_PART",
                    f"part {drop + 1} of 3",
                    load=load,
                    drop=(drop,),
                )
    yield split_case(
        "split_swapped_others", "SPLIT_PART", "found part 3 of 3, wanted part 2", lambda i: swap(i, 1, 2)
    )
    yield split_case("split_swapped_first", "SPLIT_PART", "holds part 2 of 3", lambda i: swap(i, 0, 1))
    yield split_case("split_foreign_count", "SPLIT_PART", "part of another model", foreign_part)
    yield split_case(
        "split_foreign_parts",
        "SPLIT_PART",
        "found part 2 of 2, wanted part 2 of 3",
        lambda i: replace(i, split_images(2)[1]),
    )
    yield split_case("split_whole_model", "SPLIT_PART", "found part 1 of 1", lambda i: replace(i, k3_image()))
    yield split_case(
        "split_tensor_in_two_parts",
        "SPLIT_PART",
        "token_embd.weight: found in",
        lambda i: i[1].update(tensors=[k3_image().tensors[0], *i[1].tensors[1:]]),
    )
    yield split_case(
        "split_too_few_tensors", "SPLIT_KEYS", "split.tensors.count", lambda i: i[2].tensors.pop()
    )
    yield split_case(
        "split_metadata_elsewhere", "MODEL_ARCHITECTURE", "missing", lambda i: swap_keys(i[0], i[1])
    )
    yield split_case("split_magic", "FILE_MAGIC", "part 2 of 3", lambda i: i[1].update(magic=b"GGML"))
    yield split_case(
        "split_duplicate", "FILE_DUPLICATE", "part 3 of 3", lambda i: i[2].append(i[2].tensors[0])
    )
    yield split_case(
        "split_offset",
        "FILE_OFFSET",
        "model-00003-of-00003.gguf",
        lambda i: i[2].update_tensor(0, offset=64),
    )
    renamed = split_images()[0].encode()
    yield single("split_name", "SPLIT_PART", "-00001-of-00003.gguf", renamed)
    folder = split_case("split_folder", "SPLIT_PART", "a directory")
    folder.files[part_name("split_folder", 1, 3)] = None
    yield folder


def swap_keys(a: Image, b: Image) -> None:
    """Exchanges the keys that are not the split's own."""
    own = [[k for k in image.keys if not k.name.startswith(b"split.")] for image in (a, b)]
    splits_of = [[k for k in image.keys if k.name.startswith(b"split.")] for image in (a, b)]
    a.keys, b.keys = own[1] + splits_of[0], own[0] + splits_of[1]


def with_keys(keys: list[Key]) -> Image:
    image = k3_image()
    return image.update(keys=image.keys + keys)


def wrong_split_keys() -> Iterator[Case]:
    n = len(k3_image().tensors)
    wrong: dict[str, list[Key]] = {
        "count_0": split_keys(0, 0, n),
        "count_huge": split_keys(0, 65535, n),
        "no_beyond": split_keys(3, 3, n),
        "tensors_0": split_keys(0, 1, 0),
        "tensors_negative": split_keys(0, 1, -5),
        "tensors_other": split_keys(0, 1, n + 1),
        "no_missing": split_keys(0, 1, n)[1:],
        "count_missing": [split_keys(0, 1, n)[0], split_keys(0, 1, n)[2]],
        "tensors_missing": split_keys(0, 1, n)[:2],
        "no_string": [key("split.no", STRING, "0"), *split_keys(0, 1, n)[1:]],
        "count_float": [split_keys(0, 1, n)[0], key("split.count", F32, 1.0), split_keys(0, 1, n)[2]],
        "tensors_array": [*split_keys(0, 1, n)[:2], array("split.tensors.count", I32, [n])],
    }
    for name, keys in wrong.items():
        yield single(f"split_keys_{name}", "SPLIT_KEYS", "split.", with_keys(keys))
    yield single("good_split_of_one", "OK", "", with_keys(split_keys(0, 1, n)))


def split_cases() -> Iterator[Case]:
    yield from splits()
    yield from wrong_split_keys()
