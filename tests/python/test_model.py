"""Model: description, metadata, life time and errors of loading."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from llama_k3.errors import FileMagicError, FileOpenError
from llama_k3.model import available_cpus

import llama_k3
from llama_k3 import ArgumentError, ClosedError, Model


def gguf_value(field: gguf.ReaderField) -> object:
    """A field's value as the gguf package reads it."""
    value = field.contents()
    return [v.item() if isinstance(v, np.generic) else v for v in value] if isinstance(value, list) else value


def test_description(model: Model, trained_checkpoint: Path) -> None:
    config = json.loads((trained_checkpoint / "config.json").read_text())["text_config"]
    assert model.architecture == model.info.architecture == "kimi-k3"
    assert model.n_vocab == config["vocab_size"]
    assert model.info.n_embd == config["hidden_size"]
    assert model.info.n_expert == config["num_experts"]
    assert model.info.n_ctx_train == config["max_position_embeddings"]
    assert model.info.eos_id == config["eos_token_id"]
    full_attention = config["linear_attn_config"]["full_attn_layers"]
    wanted = ["mla" if layer + 1 in full_attention else "kda" for layer in range(config["num_hidden_layers"])]
    assert model.layer_kinds == wanted


def test_metadata_is_what_the_gguf_package_reads(model: Model, tiny_gguf: Path) -> None:
    reader = gguf.GGUFReader(tiny_gguf)
    wanted = {
        name: gguf_value(field) for name, field in reader.fields.items() if not name.startswith("GGUF.")
    }
    assert set(model.metadata) == set(wanted)
    assert len(model.metadata) == len(wanted)
    for name, value in wanted.items():
        found = model.metadata[name]
        assert type(found) is type(value), name
        assert found == value, name
    with pytest.raises(KeyError):
        model.metadata["no.such.key"]


def test_kimi_linear(linear_gguf: Path) -> None:
    with Model(linear_gguf, n_threads=1) as model:
        assert model.architecture == "kimi-linear"
        assert set(model.layer_kinds) == {"kda", "mla"}
        assert model.tokenizer.special_id("<|im_end|>") in model.tokenizer.end_ids


@pytest.mark.parametrize("mmap", [True, False])
def test_load_progress_ends_at_one(tiny_gguf: Path, mmap: bool) -> None:
    seen: list[float] = []
    with Model(tiny_gguf, progress=seen.append, mmap=mmap):
        assert seen == sorted(seen)
        assert seen[-1] == 1.0


def test_a_model_in_memory_gives_the_same_bits(tiny_gguf: Path, tmp_path: Path) -> None:
    """And needs its file no more."""
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny_gguf.read_bytes())
    with Model(tiny_gguf) as mapped, mapped.context() as context:
        wanted = context.decode(list(range(40)), logits="all")
    with Model(copy, mmap=False) as read:
        copy.write_bytes(bytes(copy.stat().st_size))
        with read.context() as context:
            assert np.array_equal(context.decode(list(range(40)), logits="all"), wanted)


@pytest.mark.parametrize("mmap", [True, False])
def test_an_exception_of_the_progress_function_stops_the_load(tiny_gguf: Path, mmap: bool) -> None:
    def stop(fraction: float) -> None:
        raise ZeroDivisionError("stop here")

    with pytest.raises(ZeroDivisionError, match="stop here"):
        Model(tiny_gguf, progress=stop, mmap=mmap)


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileOpenError, match="missing.gguf"):
        Model(tmp_path / "missing.gguf")
    text = tmp_path / "text.gguf"
    text.write_text("this is no model" * 100)
    with pytest.raises(FileMagicError, match="text.gguf"):
        Model(text)


def test_use_after_close(tiny_gguf: Path) -> None:
    model = Model(tiny_gguf, n_threads=1)
    metadata = model.metadata
    model.close()
    model.close()
    assert model.closed
    for use in (lambda: model.layer_kinds, model.context, model.memory, lambda: metadata["general.name"]):
        with pytest.raises(ClosedError, match="the model is closed"):
            use()


def test_a_context_outlives_its_model(tiny_gguf: Path) -> None:
    with Model(tiny_gguf, n_threads=1) as model:
        context = model.context(n_ctx=16)
        wanted = model.context(n_ctx=16).decode([1, 2, 3])
    assert np.array_equal(context.decode([1, 2, 3]), wanted)
    context.close()


@pytest.mark.parametrize("n_threads", [0, -1, 2.5, "2"])
def test_thread_counts_out_of_range(tiny_gguf: Path, n_threads: Any) -> None:
    with pytest.raises(ArgumentError, match="n_threads: found"):
        Model(tiny_gguf, n_threads=n_threads)


@pytest.mark.parametrize(
    ("quota", "wanted"),
    [("max 100000", None), ("100000 100000", 1), ("10000 100000", 1), ("", None), ("x", None)],
)
def test_cpus_of_a_limited_container(tmp_path: Path, quota: str, wanted: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    unlimited = available_cpus(tmp_path / "missing")
    assert unlimited == len(os.sched_getaffinity(0))
    assert available_cpus(file) == (unlimited if wanted is None else wanted)


def test_more_threads_than_processors_are_not_used(tiny_gguf: Path) -> None:
    messages: list[str] = []
    llama_k3.set_log_callback(lambda level, text: messages.append(text))
    try:
        with Model(tiny_gguf, n_threads=500) as model, model.context(n_ctx=16) as context:
            context.decode([1, 2, 3])
    finally:
        llama_k3.set_log_callback(None)
    assert any("n_threads: found 500" in message for message in messages)
