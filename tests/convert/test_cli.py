"""The command: what it prints, its exit codes, planning without shards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from convert.cli import main
from tests.convert.small_checkpoint import small_k3, small_linear
from tests.convert.test_convert import convert

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    "options",
    [
        ["--outtype", "q4_0"],
        ["--experts", "f16"],
        ["--split-max-size", "0G"],
        ["--split-max-size", "5"],
        ["--split-max-size", "1.5G"],
        ["--unknown"],
    ],
)
def test_usage(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path), "--outfile", str(tmp_path / "x.gguf"), *options])
    assert caught.value.code == 2
    assert "usage: convert-k3" in capsys.readouterr().err


def test_outfile_is_required(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path)])
    assert caught.value.code == 2


def test_script(tmp_path: Path) -> None:
    """The file at the root runs from anywhere; messages on stdout, bar and errors on stderr."""
    folder = small_linear().write(tmp_path / "checkpoint")
    command = [sys.executable, str(ROOT / "convert_k3.py"), str(folder), "--outfile", "x.gguf", "--verify"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "kimi-linear: 3 layers (2 kda, 1 mla), 1 of them dense"
    assert lines[1].startswith("needs ") and lines[2].startswith("free: ")
    assert lines[-1] == "verified 64 tensors"
    assert "converting" in done.stderr and "B/s" in done.stderr
    (folder / "config.json").unlink()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "error: unusable checkpoint: config.json: found No such file or directory, wanted a readable file\n",
    )


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_k3().write(tmp_path / "checkpoint")
    assert convert(folder, tmp_path / "x.gguf", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "kimi-k3.expert_count (uint32) = 2" in out
    assert "tokenizer.ggml.eos_token_id (uint32) = 262" in out
    assert "blk.2.attn_k_b.weight                {32, 32, 2}            BF16             4096" in out
    assert "skipped: 2 vision tensors" in out
    planned = int(out.rsplit(", ", 1)[1].split(" bytes")[0])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert convert(folder, tmp_path / "x.gguf") == 0
    assert (tmp_path / "x.gguf").stat().st_size == planned


def test_dry_run_without_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Index and config alone give the plan that the shards give."""
    small = small_k3()
    small.shard_of = lambda name: 1 if "layers.2." in name else 0
    folder = small.write(tmp_path / "checkpoint")
    assert convert(folder, tmp_path / "x.gguf", "--dry-run") == 0
    wanted = capsys.readouterr().out.splitlines()
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    assert convert(folder, tmp_path / "x.gguf", "--dry-run") == 0
    found = capsys.readouterr().out.splitlines()
    assert found.pop(1).startswith("note: 2 shards are absent")
    assert found == wanted
    (folder / "tiktoken.model").unlink()
    assert convert(folder, tmp_path / "x.gguf", "--dry-run") == 0
    assert "the tokenizer's keys are not listed" in capsys.readouterr().out


def test_dry_run_shows_a_layer_in_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The layer is tagged and reported; its mixer's tensors are then unknown."""
    small = small_k3()
    small.text["linear_attn_config"]["kda_layers"] = [1]
    prefix = "language_model.model.layers.1.self_attn."
    small.tensors = {name: t for name, t in small.tensors.items() if not name.startswith(prefix)}
    folder = small.write(tmp_path / "checkpoint")
    assert convert(folder, tmp_path / "x.gguf", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "3 layers (1 kda, 1 mla, 1 short_conv)" in out
    assert "note: layer in no list: 2 (counted from 1) of 3, tagged short_conv" in out
    assert "llama_k3.layer_kinds (string[3]) = ['kda', 'short_conv', 'mla']" in out
    assert convert(folder, tmp_path / "x.gguf") == 1
