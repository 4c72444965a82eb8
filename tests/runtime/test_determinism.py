"""The same bits, however a prompt is cut, whatever else is in the batch, and with any number of threads.

Holds for every cache type in the fast form, the default. (In the stock form ggml's flash attention picks one
of several loops by the number of queries and, from 512 rows on, by threads.)
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.conftest import Case

COUNT = 200


def logits(
    case: Case, kv_type: str, cuts: list[int], n_threads: int = 1, n_ubatch: int = 512
) -> NDArray[np.float32]:
    tokens = case.tokens[:COUNT]
    with case.open(n_threads) as model, model.context(COUNT, 1, kv_type, n_ubatch) as context:
        return np.concatenate([context.decode(part, logits="all") for part in np.split(tokens, cuts)])


@pytest.fixture(params=["k3", "kimi-linear", "trained"])
def case(request: pytest.FixtureRequest) -> Case:
    """Every weight in F32, and BF16 with MXFP4 experts."""
    if request.param == "trained":
        found: Case = request.getfixturevalue("trained")
    else:
        options = ("--outtype", "f32", "--experts", "f32")
        found = request.getfixturevalue("make_case")(request.param, options, dtype="f32", experts="f32")
    return found


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
def test_cuts_and_threads(case: Case, kv_type: str) -> None:
    whole = logits(case, kv_type, [])
    assert np.array_equal(logits(case, kv_type, [1, 2, 64, 65, 130]), whole)
    assert np.array_equal(logits(case, kv_type, list(range(150, COUNT))), whole)
    assert np.array_equal(logits(case, kv_type, [], n_ubatch=23), whole)
    assert np.array_equal(logits(case, kv_type, [100], n_threads=2), whole)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
def test_company_in_the_batch(case: Case, kv_type: str) -> None:
    """Three sequences in one batch, each of another part of the text, against each alone."""
    parts = [case.tokens[:50], case.tokens[50:57], case.tokens[57:130]]
    order = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [len(part) for part in parts]))
    rest = [iter(part.tolist()) for part in parts]
    items = [(next(rest[seq]), int(seq), True) for seq in order]
    with case.open() as model, model.context(100, 3, kv_type, 31) as context:
        together = context.decode_batch(items)
        for seq, part in enumerate(parts):
            context.clear(seq)
            assert np.array_equal(context.decode(part, seq=seq, logits="all"), together[order == seq])
