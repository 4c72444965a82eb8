"""The model as a Hugging Face checkpoint in K3's layout (MXFP4 experts, BF16 matrices), and back."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import mxfp4
from .bpe import Tokenizer
from .config import A_LOG_LENGTH, END_OF_MESSAGE, TinyConfig
from .model import TinyK3

_PREFIX = "language_model."
_EXPERT_MATRICES = ("w1", "w2", "w3")
_FLOAT32 = ("A_log", "dt_bias", "q_conv1d", "k_conv1d", "v_conv1d", "o_norm")
_BARE = ("A_log", "dt_bias")
"""Tensors without the `.weight` suffix."""


def hf_name(name: str) -> str:
    """The checkpoint's name of a parameter or buffer (experts excepted: they are split, see `hf_tensors`)."""
    last = name.split(".")[-1]
    head = _PREFIX if name == "lm_head" else _PREFIX + "model."
    if last == "gate_bias":
        return head + name.removesuffix("gate_bias") + "gate.e_score_correction_bias"
    return head + name + ("" if last in _BARE else ".weight")


def _expert_base(name: str, expert: int) -> str:
    """`layers.1.block_sparse_moe.w1` -> `…experts.<expert>.w1`."""
    owner, matrix = name.rsplit(".", 1)
    return f"{_PREFIX}model.{owner}.experts.{expert}.{matrix}"


def hf_tensors(model: TinyK3) -> dict[str, Tensor]:
    """All tensors of the checkpoint, by name, in K3's dtypes and shapes."""
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        last = name.split(".")[-1]
        if last in _EXPERT_MATRICES:
            packed, scale = mxfp4.pack(value)
            for expert in range(value.shape[0]):
                base = _expert_base(name, expert)
                tensors[base + ".weight_packed"] = packed[expert].clone()
                tensors[base + ".weight_scale"] = scale[expert].clone()
            continue
        if last == "A_log":
            value = torch.cat([value, value.new_zeros(A_LOG_LENGTH - len(value))])
        if last.endswith("res_proj"):
            value = value[None]
        single = last in _FLOAT32 or last == "gate_bias"
        tensors[hf_name(name)] = value.to(torch.float32 if single else torch.bfloat16).contiguous()
    return tensors


def save_hf(model: TinyK3, tokenizer: Tokenizer, directory: Path) -> None:
    """Write weights, configs and tokenizer files."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(hf_tensors(model), directory / "model.safetensors", metadata={"format": "pt"})
    generation = {"max_length": model.config.max_positions, "eos_token_id": END_OF_MESSAGE}
    for name, content in (("config", model.config.to_hf()), ("generation_config", generation)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    tokenizer.save(directory)


def load_hf(directory: Path) -> TinyK3:
    """The model of an exported checkpoint in fp32. Raises ValueError for a tensor too many, missing or of
    another size than the config says."""
    config = TinyConfig.from_hf(json.loads((directory / "config.json").read_text(encoding="utf-8")))
    stored = load_file(directory / "model.safetensors")
    model = TinyK3(config)
    state = {name: _read(stored, name, value) for name, value in model.state_dict().items()}
    if stored:
        raise ValueError(f"{directory}: {len(stored)} tensors left over, such as {min(stored)}")
    model.load_state_dict(state)
    return model.eval()


def _read(stored: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Take the tensors of one parameter out of `stored`."""
    last = name.split(".")[-1]
    if last in _EXPERT_MATRICES:
        bases = [_expert_base(name, expert) for expert in range(like.shape[0])]
        parts = [(_take(stored, b + ".weight_packed"), _take(stored, b + ".weight_scale")) for b in bases]
        return torch.stack([mxfp4.unpack(packed, scale) for packed, scale in parts])
    value = _take(stored, hf_name(name)).float()
    if last == "A_log":
        value = value[: len(like)]
    if value.numel() != like.numel():
        shapes = f"found shape {list(value.shape)}, want {list(like.shape)}"
        raise ValueError(f"checkpoint: {hf_name(name)}: {shapes}")
    return value.reshape(like.shape)


def _take(stored: dict[str, Tensor], name: str) -> Tensor:
    if name not in stored:
        raise ValueError(f"checkpoint: {name} is missing")
    return stored.pop(name)
