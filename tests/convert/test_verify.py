"""--verify must notice any change of an output: of values, types, shapes, keys, files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from convert import verify
from convert.cli import EXIT_REFUSED
from convert.verify import rounding
from tests.conftest import CheckpointFactory
from tests.convert.small_checkpoint import small_k3, small_linear
from tests.convert.test_convert import convert

OPTIONS = [
    (),
    ("--outtype", "f32", "--experts", "f32"),
    ("--outtype", "q8_0", "--experts", "q8_0"),
    ("--outtype", "f16", "--experts", "mxfp4"),
]


def flip(path: Path, offset: int, mask: int = 0x40) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", ["k3", "kimi-linear"])
def test_a_wrong_value_in_each_tensor(
    tiny_checkpoint: CheckpointFactory, make: str, options: tuple[str, ...], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A high bit of every tensor's last value turned: every tensor is found."""
    folder, out = tiny_checkpoint(make), tmp_path / "x.gguf"
    assert convert(folder, out, *options) == 0
    tensors = [(t.name, int(t.data_offset), int(t.n_bytes)) for t in gguf.GGUFReader(out).tensors]
    for _, offset, nbytes in tensors:
        flip(out, offset + nbytes - 1)
    assert convert(folder, out, *options, "--verify") == EXIT_REFUSED
    assert f"{len(tensors)} of {len(tensors)} tensors differ: token_embd.weight" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["blk.1.ffn_up_exps.weight", "blk.2.attn_k_b.weight", "blk.0.ssm_a", "output.weight"]
)
@pytest.mark.parametrize("step", [1 << 20, 64])
def test_one_wrong_value_is_placed(
    name: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify, "STEP_VALUES", step)
    folder, out = small_k3().write(tmp_path / "checkpoint"), tmp_path / "x.gguf"
    assert convert(folder, out, "--outtype", "f32", "--verify") == 0
    tensor = next(t for t in gguf.GGUFReader(out).tensors if t.name == name)
    flip(out, int(tensor.data_offset) + int(tensor.n_bytes) - 1)
    assert convert(folder, out, "--outtype", "f32", "--verify") == EXIT_REFUSED
    assert f"error: verification failed: 1 of 78 tensors differ: {name} " in capsys.readouterr().err


def test_a_single_code_and_a_single_scale(tmp_path: Path) -> None:
    """Packed experts are compared bit for bit."""
    folder, out = small_k3().write(tmp_path / "checkpoint"), tmp_path / "x.gguf"
    assert convert(folder, out) == 0
    tensor = next(t for t in gguf.GGUFReader(out).tensors if t.name == "blk.1.ffn_gate_exps.weight")
    for offset in (17, 18, 33):
        for mask in (0x01, 0x10):
            flip(out, int(tensor.data_offset) + offset, mask)
            assert convert(folder, out, "--verify") == EXIT_REFUSED
            flip(out, int(tensor.data_offset) + offset, mask)
    assert convert(folder, out, "--verify") == 0


def test_existing_output_is_only_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = small_linear().write(tmp_path / "checkpoint"), tmp_path / "x.gguf"
    assert convert(folder, out, "--verify") == 0
    before = out.stat().st_mtime_ns
    assert convert(folder, out, "--verify") == 0
    assert out.stat().st_mtime_ns == before
    assert "comparing it with the checkpoint" in capsys.readouterr().out


def test_other_options_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = small_k3().write(tmp_path / "checkpoint"), tmp_path / "x.gguf"
    assert convert(folder, out, "--experts", "bf16") == 0
    assert convert(folder, out, "--verify") == EXIT_REFUSED
    assert (
        "key general.file_type of x.gguf: found 32, wanted general.file_type (uint32) = 38"
        in capsys.readouterr().err
    )


def test_file_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_k3().write(tmp_path / "one")
    small_linear().write(tmp_path / "two")
    assert convert(tmp_path / "one", tmp_path / "x.gguf") == 0
    assert convert(tmp_path / "two", tmp_path / "x.gguf", "--verify") == EXIT_REFUSED
    assert "error: verification failed: key " in capsys.readouterr().err


@pytest.mark.parametrize("keep", [0, 3, 30, 5000, -40])
def test_cut_file(keep: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = small_k3().write(tmp_path / "checkpoint"), tmp_path / "x.gguf"
    assert convert(folder, out) == 0
    out.write_bytes(out.read_bytes()[:keep])
    assert convert(folder, out, "--verify") == EXIT_REFUSED
    assert "error: verification failed: " in capsys.readouterr().err


@pytest.mark.parametrize("qtype", [Type.BF16, Type.F16, Type.Q8_0, Type.MXFP4])
def test_rounding_is_a_tight_bound(qtype: Type) -> None:
    """gguf's own quantiser stays within the bound and comes close to it."""
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((4000, 32)) * np.exp2(rng.integers(-8, 8, (4000, 1)))).astype(np.float32)
    stored = gguf.quants.dequantize(gguf.quants.quantize(values, qtype), qtype)
    ratio = np.abs(stored.astype(np.float64) - values) / rounding(values.astype(np.float64), qtype)
    assert 0.9 < ratio.max() <= 1.0
