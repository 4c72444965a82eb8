"""MODEL.md against the converter's table and the configs: names, shapes, types, sources and transforms."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import pytest

from convert.config import HyperParameters, read_config
from convert.tensors import TensorSpec, Transform, model_tensors
from tests.conftest import TESTS, CheckpointFactory

DOCUMENT = (TESTS.parent / "MODEL.md").read_text()
MODEL_LABELS = {"k3": "K3", "kimi-linear": "KL"}

# The tables of section 5, and how often each applies in the real models.
SECTIONS = ("Outside the layers", "Every layer", "KDA layers", "MLA layers", "Dense layers", "MoE layers")
REAL_COUNTS = {
    "k3": dict(zip(SECTIONS, (1, 93, 69, 24, 1, 92), strict=True)),
    "kimi-linear": dict(zip(SECTIONS, (1, 27, 20, 7, 1, 26), strict=True)),
}


@dataclass(frozen=True)
class Row:
    """One line of a tensor table; `section` is the heading above it."""

    section: str
    models: str
    name: str
    shape: str
    role: str
    sources: tuple[str, ...]
    transform: str

    def applies_to(self, arch: str) -> bool:
        return self.models in ("both", MODEL_LABELS[arch])

    def key(self, symbols: dict[str, int]) -> tuple[Any, ...]:
        return self.name, evaluate_shape(self.shape, symbols), self.role, self.sources, self.transform


def table_cells(text: str) -> list[list[str]]:
    """Cells of the body lines of a section's first table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def section_text(title: str) -> str:
    """What stands between a heading that starts with `title` and the next heading of any level."""
    match = re.search(rf"^#+ {re.escape(title)}.*?\n(.*?)(?=^#|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert match, title
    return match[1]


def tensor_rows() -> list[Row]:
    rows = []
    for title in SECTIONS:
        for models, name, shape, role, source, transform in table_cells(section_text(title)):
            sources = tuple(re.findall(r"`([^`]+)`", source))
            rows.append(Row(title, models, name.strip("`"), shape.strip("`{}"), role, sources, transform))
    return rows


def evaluate_shape(shape: str, symbols: dict[str, int]) -> tuple[int, ...]:
    return tuple(int(eval(part, {"__builtins__": {}}, dict(symbols))) for part in shape.split(","))


def symbols_from_config(text: dict[str, Any]) -> dict[str, int]:
    """The symbols of section 1 with the values that their config fields have in `text`."""
    fields = {**text, **{f"linear_attn_config.{k}": v for k, v in text["linear_attn_config"].items()}}
    symbols: dict[str, int] = {}
    for symbol, field, *_ in table_cells(section_text("1. Sizes")):
        field = field.strip("`")
        if field in fields:
            symbols[symbol.strip("`")] = fields[field]
        elif " * " in field:
            symbols[symbol.strip("`")] = eval(field, {"__builtins__": {}}, {**symbols, **text})
    return {name: value for name, value in symbols.items() if value is not None}


def real_symbols(arch: str) -> dict[str, int]:
    """The symbols of section 1 with the values of the real model."""
    column = {"k3": 2, "kimi-linear": 3}[arch]
    cells = table_cells(section_text("1. Sizes"))
    return {row[0].strip("`"): int(row[column]) for row in cells if row[column] != "-"}


def converter_key(spec: TensorSpec) -> tuple[Any, ...]:
    """A converter entry in the document's words: layer numbers as N, experts as E."""
    sources = []
    for source in spec.sources:
        name = re.sub(r"^model\.layers\.\d+\.", "", source.name).replace("{}", "E")
        sources.append(f"{name}.weight" if spec.transform == Transform.EXPERTS else name)
    name = re.sub(r"^blk\.\d+\.", "blk.N.", spec.name)
    return name, spec.ne, spec.role.value, tuple(sources), spec.transform.value


@pytest.fixture(params=sorted(MODEL_LABELS))
def model(request: pytest.FixtureRequest, tiny_checkpoint: CheckpointFactory) -> tuple[str, dict[str, Any]]:
    config = json.loads((tiny_checkpoint(request.param) / "config.json").read_text())
    return request.param, config


def test_tensor_tables_are_the_converters(model: tuple[str, dict[str, Any]]) -> None:
    arch, config = model
    hp: HyperParameters = read_config(config)
    symbols = symbols_from_config(config.get("text_config", config))
    wanted = {converter_key(spec) for spec in model_tensors(hp)}
    found = {row.key(symbols) for row in tensor_rows() if row.applies_to(arch)}
    assert sorted(wanted - found) == [], "in the converter, not in MODEL.md"
    assert sorted(found - wanted) == [], "in MODEL.md, not in the converter"


def test_tables_give_the_published_tensor_counts_of_k3() -> None:
    """2573 tensors: 1112 F32, 276 MXFP4 and 1185 of the output type."""
    counts = {"f32": 0, "experts": 0, "matrix": 0}
    for row in tensor_rows():
        if row.applies_to("k3"):
            counts[row.role] += REAL_COUNTS["k3"][row.section]
    assert counts == {"f32": 1112, "experts": 276, "matrix": 1185}


@pytest.mark.parametrize(("arch", "billions"), [("k3", 2779.48), ("kimi-linear", 49.12)])
def test_tables_give_the_published_parameter_counts(arch: str, billions: float) -> None:
    symbols = real_symbols(arch)
    total = sum(
        math.prod(evaluate_shape(row.shape, symbols)) * REAL_COUNTS[arch][row.section]
        for row in tensor_rows()
        if row.applies_to(arch)
    )
    assert round(total / 1e9, 2) == billions


def test_own_keys_are_named() -> None:
    for key in ("llama_k3.layer_kinds", "llama_k3.lora_norm_epsilon", "llama_k3.l2_norm_epsilon"):
        assert f"`{key}`" in DOCUMENT


def test_the_wrong_claim_about_layer_kinds_is_answered() -> None:
    text = section_text("2. Which layer is what")
    for fact in (
        "count layers **from 1**",
        "no third kind of layer",
        "inside every KDA layer",
        "neither list",
    ):
        assert fact in text
