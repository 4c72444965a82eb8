"""Decode against the float64 reference: whole, in micro-batches, token by token, several sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compare import assert_close
from tests.runtime.conftest import LONGEST, Case, CaseFactory

# Float32 arithmetic against float64 over up to 300 tokens; logits reach 10.
EXACT = 2e-4


@pytest.mark.parametrize("n_ubatch", [512, 64, 37, 3])
def test_prefill_equals_reference(exact: Case, n_ubatch: int) -> None:
    with exact.open() as model, model.context(n_ctx=LONGEST, kv_type="f32", n_ubatch=n_ubatch) as context:
        found = context.decode(exact.tokens, logits="all")
    assert_close(found, exact.logits, max_abs=EXACT, argmax=True)


def test_token_by_token_equals_reference(exact: Case) -> None:
    with exact.open() as model, model.context(n_ctx=LONGEST, kv_type="f32") as context:
        found = [context.decode([token])[0] for token in exact.tokens]
    assert_close(found, exact.logits, max_abs=EXACT, argmax=True)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 300])
def test_prompt_of_any_length_then_one_token(exact: Case, count: int) -> None:
    with exact.open() as model, model.context(n_ctx=LONGEST, kv_type="f32") as context:
        found = [context.decode(exact.tokens[:count])]
        if count < LONGEST:
            found.append(context.decode(exact.tokens[count : count + 1]))
    wanted = exact.logits[count - 1 : count - 1 + len(found)]
    assert_close(np.concatenate(found), wanted, max_abs=EXACT, argmax=True)


@pytest.mark.parametrize("n_sequences", [1, 2, 3, 4])
@pytest.mark.parametrize("n_ubatch", [512, 29])
def test_interleaved_sequences_equal_reference(exact: Case, n_sequences: int, n_ubatch: int) -> None:
    """Tokens of all sequences in random order and random calls, each with its own part of the text."""
    random = np.random.default_rng(n_sequences)
    starts = [0, 40, 80, 120][:n_sequences]
    counts = [90, 33, 64, 1][:n_sequences]
    order = random.permutation(np.repeat(np.arange(n_sequences), counts))
    reached = [0] * n_sequences
    items = []
    for seq in order:
        items.append((int(exact.tokens[starts[seq] + reached[seq]]), int(seq), True))
        reached[seq] += 1
    with (
        exact.open() as model,
        model.context(n_ctx=100, n_seq_max=n_sequences, kv_type="f32", n_ubatch=n_ubatch) as context,
    ):
        cut = len(items) // 3
        found = np.concatenate([context.decode_batch(items[:cut]), context.decode_batch(items[cut:])])
    for seq in range(n_sequences):
        tokens = exact.tokens[starts[seq] : starts[seq] + counts[seq]]
        wanted = exact.reference.forward(tokens)
        assert_close(found[order == seq], wanted, max_abs=EXACT, what=f"sequence {seq}")


def heads(count: int) -> dict[str, int]:
    return {"num_attention_heads": count, "num_key_value_heads": count, "num_heads": count}


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "one head": ("k3", heads(1)),
    "three heads of 64": ("k3", heads(3) | {"head_dim": 64}),
    "head dims not multiples of 32": (
        "kimi-linear",
        {"qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 40},
    ),
    "every layer its own block": ("k3", {"attn_res_block_size": 1}),
    "blocks of two": ("k3", {"attn_res_block_size": 2}),
    "two dense layers": ("k3", {"first_k_dense_replace": 2}),
    "thirteen layers": ("kimi-linear", {"num_hidden_layers": 13}),
    "one expert chosen": ("k3", {"num_experts_per_token": 1}),
    "all experts chosen": ("k3", {"num_experts_per_token": 8}),
    "another bound": ("k3", {"gate_lower_bound": -2.5}),
    "another scaling": ("k3", {"routed_scaling_factor": 2.5}),
    "the released heads": (
        "k3",
        heads(96)
        | {
            "head_dim": 128,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        }
        | {"num_hidden_layers": 5},
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_other_shapes(make_case: CaseFactory, name: str) -> None:
    arch, fields = SHAPES[name]
    case = make_case(
        arch, ("--outtype", "f32", "--experts", "f32"), count=40, seed=3, dtype="f32", experts="f32", **fields
    )
    with case.open() as model, model.context(n_ctx=64, kv_type="f32", n_ubatch=25) as context:
        found = context.decode(case.tokens, logits="all")
    assert_close(found, case.logits, max_abs=EXACT, argmax=True)


def test_logits_only_where_wanted(exact: Case) -> None:
    with exact.open() as model, model.context(n_ctx=64, kv_type="f32", n_ubatch=8) as context:
        items = [(int(token), 0, place in (3, 8, 19)) for place, token in enumerate(exact.tokens[:20])]
        found = context.decode_batch(items)
        assert context.decode(exact.tokens[20:30], logits="none").shape == (0, model.n_vocab)
        after = context.decode(exact.tokens[30:31])
    assert_close(found, exact.logits[[3, 8, 19]], max_abs=EXACT)
    assert_close(after, exact.logits[30:31], max_abs=EXACT)


def test_eps_of_the_lora_norms(make_case: CaseFactory) -> None:
    """With inputs of the q_a and kv_a norms this small, 1e-5 in place of 1e-6 moves the logits."""
    case = make_case(
        "k3",
        ("--outtype", "f32", "--experts", "f32"),
        count=40,
        dtype="f32",
        experts="f32",
        norm_input_scale=1e-3,
    )
    with case.open() as model, model.context(n_ctx=64, kv_type="f32") as context:
        assert_close(context.decode(case.tokens, logits="all"), case.logits, max_abs=EXACT, argmax=True)
