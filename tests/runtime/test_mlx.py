"""The runtime against mlx-lm directly: the same checkpoint, one as GGUF, the other as the HF folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compare import assert_close
from tests.runtime.conftest import Case
from tests.test_reference import FLOAT32, oracle_logits

COUNT = 70


def test_trained_checkpoint_with_packed_experts(
    trained: Case, trained_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BF16 weights and MXFP4 experts on both sides, all arithmetic in float32."""
    pytest.importorskip("mlx_lm")
    monkeypatch.setenv("LLAMA_K3_OPS", "reference")
    tokens = trained.tokens[:COUNT]
    wanted = oracle_logits("mlx", trained_checkpoint, tokens, None, tmp_path)
    with trained.open() as model, model.context(n_ctx=COUNT, kv_type="f32") as context:
        first = context.decode(tokens[:40], logits="all")
        rest = [context.decode(tokens[i : i + 1])[0] for i in range(40, COUNT)]
    assert_close(np.concatenate([first, rest]), wanted, max_abs=FLOAT32, argmax=True)
