"""Contexts: sizes told before allocation, counters, stopping between micro-batches, non-finite logits."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

import llama_k3
from llama_k3 import Model
from tests.compare import assert_close
from tests.runtime.conftest import Case, CaseFactory, resident_bytes

EXACT = 2e-4
POISONED_TOKEN = 7


@pytest.mark.parametrize(("kv_type", "row_bytes"), [("f32", 4), ("bf16", 2), ("f16", 2), ("q8_0", 34 / 32)])
@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_sizes_are_exact_and_told_before(exact: Case, kv_type: str, row_bytes: float, n_seq_max: int) -> None:
    config = exact.reference.checkpoint.text_config
    linear = config["linear_attn_config"]
    n_mla, n_kda = len(linear["full_attn_layers"]), len(linear["kda_layers"])
    channels = linear["num_heads"] * linear["head_dim"]
    width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    with exact.open() as model:
        before = model.memory(n_ctx=200, n_seq_max=n_seq_max, kv_type=kv_type, n_ubatch=64)
        with model.context(n_ctx=200, n_seq_max=n_seq_max, kv_type=kv_type, n_ubatch=64) as context:
            assert context.memory() == before
            context.decode(exact.tokens[:30], seq=n_seq_max - 1, logits="none")
            used = context.memory().latent_used
    assert before.latent == n_mla * 200 * n_seq_max * width * row_bytes
    assert used == n_mla * 30 * width * row_bytes
    assert before.state == 2 * n_seq_max * n_kda * channels * linear["head_dim"] * 4
    assert before.window == 2 * n_seq_max * n_kda * channels * 3 * 3 * 4
    assert before.latent_used == before.snapshots == 0 < before.compute


def test_a_long_context_costs_only_what_is_filled(exact: Case) -> None:
    before = resident_bytes()
    with exact.open() as model, model.context(n_ctx=1 << 21, kv_type="f32", n_ubatch=8) as context:
        assert context.memory().latent > 1 << 30
        assert_close(context.decode(exact.tokens[:9]), exact.logits[8:9], max_abs=EXACT)
        assert resident_bytes() - before < 1 << 28


def test_counters_keep_prefill_and_decode_apart(exact: Case) -> None:
    with exact.open() as model, model.context(n_ctx=100, n_seq_max=2, kv_type="f32", n_ubatch=16) as context:
        context.decode(exact.tokens[:40], logits="none")
        context.decode(exact.tokens[:3], seq=1, logits="none")
        for token in exact.tokens[40:45]:
            context.decode([token])
        context.decode_batch([(1, 0, True), (2, 1, True)])
        found = context.counters()
        assert (found.prefill.tokens, found.prefill.batches) == (43, 4)
        assert (found.decode.tokens, found.decode.batches) == (7, 6)
        weights = model.info.n_bytes
        assert found.prefill.ms > 0 < found.decode.ms
        assert weights / 2 < found.decode.bytes / 6 < 2 * weights
        context.reset_counters()
        assert context.counters().prefill.tokens == context.counters().decode.tokens == 0


def test_bytes_grow_with_depth_by_the_rows_read(exact: Case) -> None:
    """One more token behind: one more row per MLA layer is read; nothing else depends on depth."""
    with exact.open() as model, model.context(n_ctx=300, kv_type="f32") as context:
        spent = []
        for start in (0, 100, 200):
            context.clear(0)
            if start:
                context.decode(exact.tokens[:start], logits="none")
            context.reset_counters()
            context.decode([5], logits="none")
            spent.append(context.counters().decode.bytes)
        row = context.memory().latent // 300
    # experts chosen may differ between depths: their number is fixed, their size is one
    assert np.diff(spent).tolist() == [100 * row, 100 * row]


def test_bytes_are_those_of_the_parts_used(exact: Case) -> None:
    """Weights once, of the experts those chosen; all rows are read, new ones written as well, states both."""
    count = 40
    size: dict[str, int] = {"all": 0, "experts": 0}
    for tensor in gguf.GGUFReader(exact.gguf).tensors:
        size["all"] += tensor.n_bytes
        size[tensor.name] = tensor.n_bytes
        size["experts"] += tensor.n_bytes if "_exps." in tensor.name else 0
    with exact.open() as model, model.context(n_ctx=100, kv_type="f32") as context:
        context.decode(exact.tokens[:count], logits="none")
        context.decode(exact.tokens[count : count + 1])
        found, memory, info = context.counters(), context.memory(), model.info
    row, states = memory.latent // 100, memory.state + memory.window
    embedding, output = size["token_embd.weight"], size["output.weight"]
    shared = size["all"] - size["experts"] - embedding - output
    # 40 tokens choose every expert
    prefill = shared + size["experts"] + count * embedding // info.n_vocab + 2 * count * row + states
    chosen = size["experts"] * info.n_expert_used // info.n_expert
    decode = shared + chosen + output + embedding // info.n_vocab + (count + 2) * row + states
    assert (found.prefill.bytes, found.decode.bytes) == (prefill, decode)


class Stop(Exception):
    pass


def test_stopping_keeps_whole_micro_batches(exact: Case) -> None:
    def stop(done: int, wanted: int) -> None:
        if done == 32:
            raise Stop

    with exact.open() as model, model.context(100, kv_type="f32", n_ubatch=16, progress=stop) as context:
        with pytest.raises(Stop):
            context.decode(exact.tokens[:60])
        assert context.position(0) == 32
        found = context.decode(exact.tokens[32:40], logits="all")
    assert_close(found, exact.logits[32:40], max_abs=EXACT)


def poisoned(source: Path, target: Path, tensor: str) -> Path:
    """The same file with a NaN in one row of a tensor: the embedding of POISONED_TOKEN, or the whole norm."""
    shutil.copy(source, target)
    for entry in gguf.GGUFReader(target, "r+").tensors:
        if entry.name == tensor:
            entry.data[POISONED_TOKEN if entry.data.ndim > 1 else ...] = np.nan
    return target


def test_non_finite_logits_end_that_sequence_only(exact: Case, tmp_path: Path) -> None:
    path = poisoned(exact.gguf, tmp_path / "nan.gguf", "token_embd.weight")
    with Model(path, n_threads=1) as model, model.context(n_ctx=100, n_seq_max=3, kv_type="f32") as context:
        good = [int(token) for token in exact.tokens[:20] if token != POISONED_TOKEN]
        context.decode(good, seq=0, logits="none")
        context.decode(good, seq=1, logits="none")
        with pytest.raises(llama_k3.NonFiniteError, match=f"sequence 1: .* at position {len(good)} "):
            context.decode_batch([(good[0], 0, True), (POISONED_TOKEN, 1, True)])
        assert context.position(0) == len(good) + 1
        assert context.position(1) == 0
        fresh = context.decode(good, seq=2)
        assert_close(context.decode(good, seq=1), fresh, max_abs=EXACT)


def test_a_decode_without_memory_changes_nothing(make_case: CaseFactory) -> None:
    """Logits of all tokens want more memory than was reserved and can be had; then others go on as before."""
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "num_heads": 1}
    case = make_case("k3", count=40, intermediate_size=32, **heads)
    script = f"""
import resource
import numpy as np
from llama_k3 import Model, OutOfMemoryError
n = 2048
model = Model({str(case.gguf)!r}, n_threads=1)
with model.context(n_ctx=n, n_ubatch=n, n_seq_max=2) as context:
    wanted = [context.decode([1, 2, 3]), context.decode([4])]
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    for room in range(n * model.n_vocab * 4, 1 << 30, 1 << 20):
        context.clear()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room, limits[1]))
        try:
            context.decode([5] * n, seq=1, logits="all")
            break
        except OutOfMemoryError as error:
            print(error)
        except MemoryError:  # numpy's
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert context.position(1) == 0
        assert np.array_equal(context.decode([1, 2, 3]), wanted[0])
        assert np.array_equal(context.decode([4]), wanted[1])
    assert context.position(1) == n
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "no memory for the computation" in done.stdout
