"""Opening a checkpoint folder and reading from its shards. Broken folders are in test_bad_checkpoints.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from convert.checkpoint import Checkpoint
from convert.errors import CheckpointError, MissingTensorError
from tests.convert.small_checkpoint import small_k3, small_linear


@pytest.mark.parametrize("sharded", [False, True])
def test_bytes_are_those_of_safetensors(tmp_path: Path, sharded: bool) -> None:
    small = small_k3()
    if sharded:
        small.shard_of = lambda name: len(name) % 3
    with Checkpoint(small.write(tmp_path)) as checkpoint:
        assert len(checkpoint.shards) == (3 if sharded else 1)
        for path in tmp_path.glob("*.safetensors"):
            with safe_open(path, "numpy") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    if name.startswith(("vision_tower", "mm_projector")):
                        continue
                    source = checkpoint.source(name.removeprefix("language_model."))
                    out = np.empty(source.nbytes, np.uint8)
                    checkpoint.read_into(source, 0, out.data)
                    assert out.tobytes() == small.tensors[name].data
                    assert list(source.shape) == file.get_slice(name).get_shape()


def test_vision_is_skipped_and_prefix_dropped(tmp_path: Path) -> None:
    with Checkpoint(small_k3().write(tmp_path)) as checkpoint:
        assert checkpoint.skipped == 2
        assert "model.norm.weight" in checkpoint.tensors
        assert not any(name.startswith(("language_model", "vision", "mm_")) for name in checkpoint.tensors)


def test_parts_are_read_by_position(tmp_path: Path) -> None:
    small = small_linear()
    with Checkpoint(small.write(tmp_path)) as checkpoint:
        source = checkpoint.source("lm_head.weight")
        out = np.empty(10, np.uint8)
        checkpoint.read_into(source, 6, out.data)
        assert out.tobytes() == small.tensors["lm_head.weight"].data[6:16]
        with pytest.raises(CheckpointError):
            checkpoint.read_into(source, source.nbytes - 9, out.data)
        with pytest.raises(MissingTensorError, match="lm_tail"):
            checkpoint.source("lm_tail.weight")


def test_absent_shards_are_allowed_for_planning(tmp_path: Path) -> None:
    small = small_k3()
    small.shard_of = lambda name: 1 if "layers.2." in name else 0
    folder = small.write(tmp_path)
    (folder / "model-00002-of-000002.safetensors").unlink()
    with Checkpoint(folder, allow_absent_shards=True) as checkpoint:
        assert checkpoint.absent_shards == ["model-00002-of-000002.safetensors"]
        assert checkpoint.source("model.layers.2.input_layernorm.weight").shard == -1
        assert checkpoint.source("model.layers.1.input_layernorm.weight").shard == 0


def test_a_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        Checkpoint(tmp_path / "absent")
