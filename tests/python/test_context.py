"""Context: shapes, arguments, sequences, memory and counters as Python sees them.

That the numbers are right is shown by tests/runtime against the reference model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_k3.errors import StateFormatError, StateOpenError

from llama_k3 import ArgumentError, ClosedError, Context, ContextFullError, Model, Snapshot, StateError

TOKENS = [5, 80, 300, 7, 7, 512, 90, 3, 44, 201]


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    with model.context(n_ctx=64, n_seq_max=3, kv_type="f32", n_ubatch=4) as opened:
        yield opened


def test_rows_of_each_kind(context: Context, model: Model) -> None:
    every = context.decode(TOKENS, seq=0, logits="all")
    last = context.decode(TOKENS, seq=1)
    none = context.decode(TOKENS, seq=2, logits="none")
    assert [rows.shape for rows in (every, last, none)] == [
        (10, model.n_vocab),
        (1, model.n_vocab),
        (0, model.n_vocab),
    ]
    assert every.dtype == last.dtype == none.dtype == np.float32
    assert np.array_equal(every[-1:], last)
    assert [context.position(seq) for seq in range(3)] == [10, 10, 10]
    assert context.tokens(2) == TOKENS


def test_tokens_of_every_integer_type(context: Context) -> None:
    wanted = context.decode(TOKENS)
    for kind in (np.int8, np.uint16, np.int32, np.int64, np.uint64):
        context.clear()
        small = [token % 100 for token in TOKENS]
        found = context.decode(np.array(small, kind))
        context.clear()
        assert np.array_equal(found, context.decode(small))
    context.clear()
    assert np.array_equal(context.decode(tuple(TOKENS)), wanted)


def test_batch_of_several_sequences(context: Context) -> None:
    alone = context.decode(TOKENS, seq=2, logits="all")
    items = [(token, seq, index % 2 == seq) for index, token in enumerate(TOKENS) for seq in (0, 1)]
    rows = context.decode_batch(items)
    assert rows.shape == (10, alone.shape[1])
    assert np.abs(rows - alone).max() < 1e-4


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        ([], "tokens: found none"),
        ([1, 2, -1], r"tokens\[2\]: found -1, wanted 0 .. \d+"),
        ([2**20], r"tokens\[0\]: found 1048576, wanted 0 .. \d+"),
        ([2**40], r"tokens\[0\]: found 1099511627776"),
        ([1.0], "tokens: found 1 dimensions of float64"),
        ([[1, 2]], "tokens: found 2 dimensions"),
        ([[1, 2], [3]], "tokens: found lists of several lengths"),
        (["a"], "tokens: found 1 dimensions of"),
        ([None], "tokens: found 1 dimensions of object"),
        (5, "tokens: found 0 dimensions"),
    ],
)
def test_tokens_that_are_refused(context: Context, tokens: Any, error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        context.decode(tokens)
    assert context.position() == 0


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda c: c.decode([1], seq=3), "seq: found 3, wanted 0 .. 2"),
        (lambda c: c.decode([1], seq=-1), "seq: found -1"),
        (lambda c: c.decode([1], seq="0"), "seq: found '0', wanted an integer"),
        (lambda c: c.decode([1], logits="some"), "logits: found 'some', wanted last, all or none"),
        (lambda c: c.decode_batch([(1, 0, True), (1, 3, True)]), r"seq of items\[1\]: found 3"),
        (lambda c: c.decode_batch([(-5, 0, True)]), r"token of items\[0\]: found -5"),
        (lambda c: c.decode_batch([(1, 0)]), r"items\[0\]: found \(1, 0\), wanted \(token, seq, want\)"),
        (lambda c: c.decode_batch([]), "tokens: found none"),
        (lambda c: c.copy(0, 9), "dst: found 9"),
        (lambda c: c.truncate(0, 1), "pos: found 1, wanted 0 .. 0"),
        (lambda c: c.position(True), "seq: found True, wanted an integer"),
        (lambda c: c.decode_batch([([1], 0, True), (1, 0, True)]), "token of items: found lists of several"),
        (lambda c: c.restore(0, None), "snapshot: found NoneType, wanted a Snapshot"),
        (lambda c: c.restore(c.snapshot(), 0), "snapshot: found int, wanted a Snapshot"),
        (lambda c: c.snapshot(0, checkpoints_from=-1), "checkpoints_from: found -1, wanted 0"),
        (lambda c: c.checkpoint(3), "seq: found 3"),
        (lambda c: c.checkpoints(3), "seq: found 3"),
        (lambda c: c.token_array(3), "seq: found 3"),
        (lambda c: c.drop_checkpoint(0, 5), "no checkpoint at position 5"),
        (lambda c: Snapshot.of_size(-1), "size: found -1"),
        (lambda c: c.save(0, "name\0rest"), "path: found 'name.x00rest', wanted a path without NUL"),
        (lambda c: c.load(0, 5), "path: found 5, wanted a path"),
    ],
)
def test_arguments_that_are_refused(context: Context, use: Callable[[Context], Any], error: str) -> None:
    with pytest.raises(ArgumentError, match=error):
        use(context)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"n_ctx": 0}, "n_ctx: found 0"),
        ({"n_ctx": 2**32}, "n_ctx: found 4294967296"),
        ({"n_seq_max": 0}, "n_seq_max: found 0"),
        ({"n_ubatch": 1.5}, "n_ubatch: found 1.5, wanted an integer"),
        ({"kv_type": "q4_0"}, "kv_type: found 'q4_0', wanted one of f32, f16, bf16, q8_0"),
    ],
)
def test_parameters_that_are_refused(model: Model, parameters: dict[str, Any], error: str) -> None:
    for make in (model.context, model.memory):
        with pytest.raises(ArgumentError, match=error):
            make(**parameters)


def test_a_full_context(context: Context) -> None:
    context.decode([1] * 60, logits="none")
    with pytest.raises(ContextFullError, match="64"):
        context.decode([1] * 5)
    assert context.position() == 60
    context.decode([1] * 4)
    with pytest.raises(ContextFullError):
        context.decode([1])


def test_sequences_from_python(context: Context, tmp_path: Path) -> None:
    straight = context.decode(TOKENS, seq=0, logits="all")
    context.clear(0)
    context.decode(TOKENS[:6], seq=0, logits="none")
    with context.snapshot(0) as snapshot:
        assert isinstance(snapshot, Snapshot)
        assert snapshot.position == 6
        assert snapshot.size > 6 * 4
        context.save(0, tmp_path / "sequence")
        context.copy(0, 1)
        context.decode(TOKENS[6:], seq=0, logits="none")
        context.restore(2, snapshot)
        assert context.truncate(0, 8) == 6
    for seq in range(3):
        rest = context.decode(TOKENS[6:], seq=seq, logits="all")
        assert np.abs(rest - straight[6:]).max() < 1e-4
    context.load(0, str(tmp_path / "sequence"))
    assert context.tokens(0) == TOKENS[:6]
    array = context.token_array(0)
    assert array.dtype == np.int32 and array.tolist() == TOKENS[:6]
    context.clear(0)
    assert context.token_array(0).size == 0


def test_a_closed_snapshot(context: Context) -> None:
    context.decode([1], logits="none")
    snapshot = context.snapshot()
    snapshot.close()
    with pytest.raises(ClosedError, match="the snapshot is closed"):
        context.restore(0, snapshot)


def test_files_that_cannot_be_loaded(context: Context, tmp_path: Path) -> None:
    context.decode([1, 2], logits="none")
    with pytest.raises(StateOpenError):
        context.load(0, tmp_path / "missing")
    (tmp_path / "text").write_text("no sequence" * 50)
    with pytest.raises(StateFormatError):
        context.load(0, tmp_path / "text")
    assert context.tokens() == [1, 2]


@pytest.mark.parametrize("use", [Context.save, Context.load])
def test_what_is_no_file_is_neither_read_nor_replaced(
    context: Context, tmp_path: Path, use: Callable[..., None]
) -> None:
    """A pipe stands for devices: opening one may wait, renaming over one would destroy it."""
    context.decode([1, 2], logits="none")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StateError, match="found no regular file, wanted one"):
            use(context, 0, path)
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_use_after_close(model: Model) -> None:
    context = model.context(n_ctx=16)
    context.decode([1])
    context.close()
    context.close()
    for use in (
        lambda: context.decode([1]),
        lambda: context.decode_batch([(1, 0, True)]),
        context.position,
        context.tokens,
        context.snapshot,
        context.checkpoint,
        context.checkpoints,
        context.token_array,
        context.clear,
        context.memory,
        context.counters,
        context.reset_counters,
        lambda: context.truncate(0, 0),
        lambda: context.save(0, "never-written"),
    ):
        with pytest.raises(ClosedError, match="the context is closed"):
            use()


def test_memory_before_and_after(model: Model, trained_checkpoint: Path) -> None:
    config = json.loads((trained_checkpoint / "config.json").read_text())["text_config"]
    heads, dim = config["num_attention_heads"], config["linear_attn_config"]["head_dim"]
    n_kda, n_mla = (model.layer_kinds.count(kind) for kind in ("kda", "mla"))
    # A row of Q8_0: blocks of 32 values with 34 bytes.
    row = (config["kv_lora_rank"] + config["qk_rope_head_dim"]) // 32 * 34
    with model.context(n_ctx=256, n_seq_max=2, kv_type="q8_0", n_ubatch=32, snapshot_every=0) as context:
        before = model.memory(n_ctx=256, n_seq_max=2, kv_type="q8_0", n_ubatch=32)
        after = context.memory()
        assert after == before
        assert after.weights == model.info.n_bytes
        # In fp32, of two sequences, each with one state to read and one to write.
        assert after.state == n_kda * heads * dim * dim * 4 * 2 * 2
        assert after.latent == n_mla * 256 * 2 * row
        assert after.total == after.weights + after.latent + after.state + after.window + after.compute
        context.decode(TOKENS, logits="none")
        assert context.memory().latent_used == n_mla * len(TOKENS) * row


def test_counters_keep_prompt_and_answer_apart(context: Context) -> None:
    context.decode(TOKENS)
    for token in TOKENS[:3]:
        context.decode([token])
    counters = context.counters()
    assert (counters.prefill.tokens, counters.decode.tokens) == (10, 3)
    assert (counters.prefill.batches, counters.decode.batches) == (3, 3)
    assert min(counters.prefill.ms, counters.decode.ms) > 0
    assert min(counters.prefill.bytes, counters.decode.bytes) > 0
    context.reset_counters()
    assert context.counters().prefill.tokens == context.counters().decode.tokens == 0


def test_decode_progress(model: Model) -> None:
    seen: list[tuple[int, int]] = []
    with model.context(n_ctx=64, n_ubatch=4, progress=lambda *step: seen.append(step)) as context:
        context.decode(TOKENS)
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_an_exception_of_the_progress_function_reaches_the_caller(model: Model) -> None:
    def fail(done: int, wanted: int) -> None:
        raise ZeroDivisionError("no further")

    with model.context(n_ctx=64, n_ubatch=4, progress=fail) as context:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="no further"):
                context.decode(TOKENS)
