"""Sequences: restore, truncate, copy, clear, save and load go on exactly as the straight run does."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import llama_k3
from llama_k3 import Context, Model
from tests.compare import assert_close
from tests.runtime.conftest import Case, convert_to, resident_bytes
from tests.runtime.test_context import POISONED_TOKEN, poisoned

EXACT = 2e-4
N_CTX = 128


@pytest.fixture(scope="module")
def case_model(exact: Case) -> Iterator[tuple[Case, Model]]:
    with exact.open() as model:
        yield exact, model


@pytest.fixture
def context(case_model: tuple[Case, Model]) -> Iterator[Context]:
    with case_model[1].context(n_ctx=N_CTX, n_seq_max=3, kv_type="f32", n_ubatch=16) as opened:
        yield opened


def check_goes_on(context: Context, case: Case, seq: int, start: int, count: int = 20) -> None:
    """The next tokens give the reference's logits of the whole text: one at a time, then in one piece."""
    assert context.position(seq) == start
    single = [context.decode(case.tokens[i : i + 1], seq=seq)[0] for i in range(start, start + count // 2)]
    rest = context.decode(case.tokens[start + count // 2 : start + count], seq=seq, logits="all")
    found = np.concatenate([single, rest])
    assert_close(found, case.logits[start : start + count], max_abs=EXACT, argmax=True)


def test_restore_into_its_own_sequence(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    context.decode(case.tokens[:30], logits="none")
    snapshot = context.snapshot(0)
    context.decode(case.tokens[50:70], logits="none")
    context.restore(0, snapshot)
    check_goes_on(context, case, 0, 30)
    context.restore(0, snapshot)
    check_goes_on(context, case, 0, 30)


def test_restore_into_another_sequence_leaves_the_others(
    case_model: tuple[Case, Model], context: Context
) -> None:
    case, _ = case_model
    for seq, count in ((0, 10), (1, 25), (2, 40)):
        context.decode(case.tokens[:count], seq=seq, logits="none")
    snapshot = context.snapshot(1)
    context.restore(0, snapshot)
    check_goes_on(context, case, 2, 40)
    check_goes_on(context, case, 0, 25)
    check_goes_on(context, case, 1, 25)


def test_restore_into_another_context(case_model: tuple[Case, Model], context: Context) -> None:
    case, model = case_model
    context.decode(case.tokens[:33], logits="none")
    snapshot = context.snapshot(0)
    with model.context(n_ctx=64, n_seq_max=2, kv_type="f32") as other:
        other.restore(1, snapshot)
        check_goes_on(other, case, 1, 33)
    with (
        model.context(n_ctx=32, kv_type="f32") as small,
        pytest.raises(llama_k3.ContextFullError, match="33"),
    ):
        small.restore(0, snapshot)
    with (
        model.context(n_ctx=64, kv_type="bf16") as rounded,
        pytest.raises(llama_k3.StateError, match="cache type"),
    ):
        rounded.restore(0, snapshot)


def test_copy(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    context.decode(case.tokens[:30], logits="none")
    context.decode(case.tokens[60:110], seq=2, logits="none")
    context.copy(0, 2)
    check_goes_on(context, case, 2, 30)
    check_goes_on(context, case, 0, 30)


def test_copy_over_a_sequence_with_more_snapshots(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    for _ in range(3):
        for token in case.tokens[40:100]:
            context.decode([token], seq=2, logits="none")
            context.snapshot(2)
        context.clear(0)
        context.decode(case.tokens[:30], logits="none")
        context.copy(0, 2)
        assert context.memory().snapshots == 0
    check_goes_on(context, case, 2, 30)


def test_clear_starts_anew(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    context.decode(case.tokens[40:90], logits="none")
    context.clear(0)
    check_goes_on(context, case, 0, 0)


def test_clear_leaves_the_neighbours(case_model: tuple[Case, Model]) -> None:
    """Whole pages of memory are given back; 101 rows end in the middle of one that two sequences share."""
    case, model = case_model
    with model.context(n_ctx=101, n_seq_max=3, kv_type="f32") as context:
        for seq in range(3):
            context.decode(case.tokens[: 80 if seq == 1 else 100], seq=seq, logits="none")
        context.clear(0)
        check_goes_on(context, case, 1, 80)
        context.clear(1)
        found = context.decode(case.tokens[100:101], seq=2)
        assert_close(found, case.logits[100:101], max_abs=EXACT)


def test_truncate_goes_back_to_the_newest_snapshot(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    for upto in (20, 45, 60):
        context.decode(case.tokens[context.position(0) : upto], logits="none")
        context.snapshot(0)
    context.decode(case.tokens[60:80], logits="none")
    assert context.truncate(0, 80) == 80
    assert context.truncate(0, 59) == 45
    check_goes_on(context, case, 0, 45)
    assert context.truncate(0, 45) == 45
    check_goes_on(context, case, 0, 45)
    assert context.truncate(0, 19) == 0
    check_goes_on(context, case, 0, 0)


def test_truncate_after_copy_uses_the_shared_snapshots(
    case_model: tuple[Case, Model], context: Context
) -> None:
    case, _ = case_model
    context.decode(case.tokens[:20], logits="none")
    context.snapshot(0)
    context.decode(case.tokens[20:40], logits="none")
    context.copy(0, 1)
    context.clear(0)
    assert context.truncate(1, 30) == 20
    check_goes_on(context, case, 1, 20)


def test_checkpoints_on_demand(case_model: tuple[Case, Model], context: Context) -> None:
    """Going back to one leaves it, and those before it, valid; the ones behind it are gone."""
    case, _ = case_model
    for upto in (10, 20, 30):
        context.decode(case.tokens[context.position(0) : upto], logits="none")
        context.checkpoint(0)
        context.checkpoint(0)  # a second time makes no second one
    assert [point.position for point in context.checkpoints(0)] == [10, 20, 30]
    for _ in range(3):
        assert context.truncate(0, 29) == 20
        assert [point.position for point in context.checkpoints(0)] == [10, 20]
        check_goes_on(context, case, 0, 20)
    context.drop_checkpoint(0, 20)
    with pytest.raises(llama_k3.ArgumentError, match="no checkpoint at position 20"):
        context.drop_checkpoint(0, 20)
    assert context.truncate(0, 29) == 10
    check_goes_on(context, case, 0, 10)
    context.clear(0)
    context.checkpoint(0)  # nothing to keep
    assert context.checkpoints(0) == []


def test_a_shared_checkpoint_counts_once(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    context.decode(case.tokens[:20], logits="none")
    context.checkpoint(0)
    one = context.memory().snapshots
    assert one == (context.memory().state + context.memory().window) // 6
    context.copy(0, 1)
    context.copy(1, 2)
    assert context.checkpoints(0) == context.checkpoints(1) == context.checkpoints(2)
    context.clear(0)
    context.drop_checkpoint(1, 20)
    assert context.memory().snapshots == one
    context.decode(case.tokens[20:40], seq=2, logits="none")
    assert context.truncate(2, 30) == 20
    check_goes_on(context, case, 2, 20)
    context.clear(2)
    assert context.memory().snapshots == 0


def test_snapshot_with_checkpoints(case_model: tuple[Case, Model], context: Context) -> None:
    """By way of its bytes, into another context. Nothing changes in the sequence that was copied."""
    case, model = case_model
    for upto in (10, 20, 30, 35):
        context.decode(case.tokens[context.position(0) : upto], logits="none")
        if upto < 35:
            context.checkpoint(0)
    before = context.checkpoints(0)
    wanted = {0: [10, 20, 30, 35], 11: [20, 30, 35], 31: [35], 10**12: [35]}
    with model.context(n_ctx=64, kv_type="f32") as other:
        for first, positions in wanted.items():
            block = bytes(context.snapshot(0, checkpoints_from=first).data())
            other.restore(0, llama_k3.Snapshot.from_bytes(block))
            assert [point.position for point in other.checkpoints(0)] == positions
            check_goes_on(other, case, 0, 35)
        assert other.truncate(0, 34) == 0
        other.restore(0, context.snapshot(0, checkpoints_from=0))
        assert other.truncate(0, 29) == 20
        check_goes_on(other, case, 0, 20)
    assert context.checkpoints(0) == before


def test_bytes_that_are_no_snapshot(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    context.decode(case.tokens[:9], logits="none")
    for block in (b"", b"x" * 50, bytes(1000)):
        snapshot = llama_k3.Snapshot.from_bytes(block)
        assert (snapshot.size, snapshot.position) == (len(block), -1)
        with pytest.raises(llama_k3.StateError):
            context.restore(0, snapshot)
    good = bytes(context.snapshot(0, checkpoints_from=0).data())
    places = [*range(160), *np.random.default_rng(0).integers(160, len(good), 40)]
    for place in map(int, places):
        damaged = bytearray(good)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(llama_k3.StateError):
            context.restore(0, llama_k3.Snapshot.from_bytes(damaged))
    assert context.tokens(0) == case.tokens[:9].tolist()
    check_goes_on(context, case, 0, 9)


def test_a_view_of_a_snapshots_bytes_keeps_them(case_model: tuple[Case, Model], context: Context) -> None:
    context.decode(case_model[0].tokens[:9], logits="none")
    snapshot = context.snapshot(0, checkpoints_from=0)
    view = snapshot.data()
    before = bytes(view)
    snapshot.close()
    del snapshot
    others = [llama_k3.Snapshot.of_size(len(before)) for _ in range(20)]
    for other in others:
        other.data()[:] = b"\xff" * len(before)
    assert bytes(view) == before


@pytest.mark.parametrize("position", [-1, 31, 10**12])
def test_truncate_beyond_the_sequence(
    case_model: tuple[Case, Model], context: Context, position: int
) -> None:
    context.decode(case_model[0].tokens[:30], logits="none")
    with pytest.raises(llama_k3.ArgumentError, match="30"):
        context.truncate(0, position)
    assert context.position(0) == 30


def test_full_context_changes_nothing(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    context.decode(case.tokens[:100], logits="none")
    with pytest.raises(llama_k3.ContextFullError, match="129.*128"):
        context.decode(case.tokens[100:129])
    with pytest.raises(llama_k3.ContextFullError):
        context.decode_batch([(1, 1, False)] + [(2, 0, False)] * 29)
    assert context.position(1) == 0
    check_goes_on(context, case, 0, 100)


LOADER = """
import sys, numpy as np
from llama_k3 import Model
gguf, saved, tokens, out = sys.argv[1:]
with Model(gguf, n_threads=1) as model, model.context(n_ctx=128, n_seq_max=3, kv_type="f32") as context:
    context.load(2, saved)
    start = context.position(2)
    np.save(out, context.decode(np.load(tokens)[start:start + 20], seq=2, logits="all"))
"""


def test_save_new_process_load(case_model: tuple[Case, Model], context: Context, tmp_path: Path) -> None:
    case, _ = case_model
    context.decode(case.tokens[:40], logits="none")
    context.save(0, tmp_path / "sequence")
    np.save(tmp_path / "tokens.npy", case.tokens)
    command = [case.gguf, tmp_path / "sequence", tmp_path / "tokens.npy", tmp_path / "out.npy"]
    subprocess.run([sys.executable, "-c", LOADER, *map(str, command)], check=True, timeout=60)
    assert_close(np.load(tmp_path / "out.npy"), case.logits[40:60], max_abs=EXACT, argmax=True)


def test_saved_snapshots_serve_truncate(
    case_model: tuple[Case, Model], context: Context, tmp_path: Path
) -> None:
    case, _ = case_model
    context.decode(case.tokens[:20], logits="none")
    context.snapshot(0)
    context.decode(case.tokens[20:40], logits="none")
    context.save(0, tmp_path / "sequence")
    context.load(1, tmp_path / "sequence")
    assert context.truncate(1, 30) == 20
    check_goes_on(context, case, 1, 20)


def test_saved_file_with_any_flipped_or_missing_byte_is_refused(
    case_model: tuple[Case, Model], context: Context, tmp_path: Path
) -> None:
    case, _ = case_model
    context.decode(case.tokens[:3], logits="none")
    context.snapshot(0)
    context.decode(case.tokens[3:5], logits="none")
    path = tmp_path / "sequence"
    context.save(0, path)
    good = path.read_bytes()
    context.decode(case.tokens[:9], seq=1, logits="none")
    places = [*range(160), *np.random.default_rng(0).integers(160, len(good), 60)]
    for place in map(int, places):
        damaged = bytearray(good)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(llama_k3.StateError):
            context.load(1, path)
    for size in (0, 7, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(llama_k3.StateError):
            context.load(1, path)
    path.write_bytes(good + b"x")
    with pytest.raises(llama_k3.StateError):
        context.load(1, path)
    with pytest.raises(llama_k3.StateError, match="missing"):
        context.load(1, tmp_path / "missing")
    check_goes_on(context, case, 1, 9)


def test_saved_file_of_another_model_is_refused(
    case_model: tuple[Case, Model], context: Context, trained_checkpoint: Path, tmp_path: Path
) -> None:
    with (
        Model(convert_to(trained_checkpoint, tmp_path / "other.gguf")) as other,
        other.context(n_ctx=16) as theirs,
    ):
        theirs.decode([1, 2, 3], logits="none")
        theirs.save(0, tmp_path / "sequence")
    with pytest.raises(llama_k3.StateError, match="model"):
        context.load(0, tmp_path / "sequence")


def test_save_into_a_missing_folder_leaves_nothing(
    case_model: tuple[Case, Model], context: Context, tmp_path: Path
) -> None:
    context.decode(case_model[0].tokens[:5], logits="none")
    with pytest.raises(llama_k3.StateError, match="missing"):
        context.save(0, tmp_path / "missing" / "sequence")
    assert list(tmp_path.iterdir()) == []


def test_save_uses_up_what_a_killed_one_left(
    case_model: tuple[Case, Model], context: Context, tmp_path: Path
) -> None:
    path = tmp_path / "sequence"
    (tmp_path / "sequence.tmp").write_bytes(b"x" * 10_000_000)
    context.decode(case_model[0].tokens[:5], logits="none")
    context.save(0, path)
    assert list(tmp_path.iterdir()) == [path]
    context.load(1, path)
    assert context.position(1) == 5


def test_save_while_another_process_saves_is_refused(
    case_model: tuple[Case, Model], context: Context, tmp_path: Path
) -> None:
    path, temporary = tmp_path / "sequence", tmp_path / "sequence.tmp"
    context.decode(case_model[0].tokens[:5], logits="none")
    with temporary.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(llama_k3.StateError, match="not written"):
            context.save(0, path)
        assert not path.exists() and temporary.exists()
    context.save(0, path)
    assert list(tmp_path.iterdir()) == [path]


def test_restore_marks_its_position(case_model: tuple[Case, Model], context: Context) -> None:
    case, _ = case_model
    context.decode(case.tokens[:20], logits="none")
    snapshot = context.snapshot(0)
    context.restore(1, snapshot)
    context.decode(case.tokens[20:40], seq=1, logits="none")
    assert context.truncate(1, 39) == 20
    check_goes_on(context, case, 1, 20)


def test_truncate_gives_memory_back(case_model: tuple[Case, Model]) -> None:
    """Rows behind the cut are no longer resident: /proc tells the pages of the process."""
    case, model = case_model
    with model.context(n_ctx=1 << 12, kv_type="f32", n_ubatch=256) as context:
        context.decode(np.resize(case.tokens, 256), logits="none")
        context.snapshot(0)
        before = resident_bytes()
        context.decode(np.resize(case.tokens, 3_800), logits="none")
        held = context.memory().latent_used
        full = resident_bytes()
        assert full - before > held * 0.8
        context.truncate(0, 256)
        assert full - resident_bytes() > held * 0.8


def test_non_finite_logits_leave_the_rows_of_the_others(exact: Case, tmp_path: Path) -> None:
    """Two of three sequences end; a second micro-batch of the call is not computed."""
    path = poisoned(exact.gguf, tmp_path / "nan.gguf", "token_embd.weight")
    good = [int(token) for token in exact.tokens[:20] if token != POISONED_TOKEN]
    with Model(path, n_threads=1) as model, model.context(n_ctx=64, n_seq_max=3, n_ubatch=4) as context:
        wanted = context.decode(good[:2], logits="all")
        context.clear(0)
        batch = [(good[0], 0, True), (POISONED_TOKEN, 2, True), (POISONED_TOKEN, 1, True), (good[1], 0, True)]
        with pytest.raises(llama_k3.NonFiniteError, match="sequence 2") as caught:
            context.decode_batch([*batch, (good[2], 0, True)])
        assert caught.value.sequences == (2, 1)
        rows = caught.value.logits
        assert np.array_equal(rows[[0, 3]], wanted)
        assert np.isnan(rows[[1, 2, 4]]).all()
        assert [context.position(seq) for seq in range(3)] == [2, 0, 0]
