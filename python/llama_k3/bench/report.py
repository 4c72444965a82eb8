"""Reports in llama-bench's formats: its columns and fields in its order, own fields behind them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from .. import __version__
from .grid import Grid
from .result import Result, cpu_name, deviation, mean, median

BACKEND = "CPU"
FORMATS = ("md", "csv", "json", "jsonl")

# Fields whose values cannot differ here: no accelerator, one way to load and to compute.
_CONSTANT_FIELDS: Mapping[str, Any] = {
    "cpu_mask": "0x0",
    "cpu_strict": False,
    "poll": 0,
    "n_gpu_layers": 0,
    "n_cpu_moe": 0,
    "split_mode": "none",
    "main_gpu": 0,
    "no_kv_offload": False,
    "flash_attn": 1,
    "devices": "none",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "load_mode": "mmap",
    "lazy_mode": "off",
    "embeddings": False,
    "no_op_offload": 0,
    "no_host": False,
    "repack": False,
    "fit_target": 0,
    "fit_min_ctx": 0,
}
FIELDS = (
    *("build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename", "model_type"),
    *("model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll"),
    *("type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload"),
    *("flash_attn", "devices", "tensor_split", "tensor_buft_overrides", "load_mode", "lazy_mode"),
    *("embeddings", "no_op_offload", "no_host", "repack", "fit_target", "fit_min_ctx", "n_prompt", "n_gen"),
    *("n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts"),
)
OWN_FIELDS = (
    *("test", "filled", "median_ns", "median_ts", "avg_prompt_ts", "avg_gen_ts", "bytes_per_token"),
    "ms_per_token_by_kind",
)
_SAMPLES = ("samples_ns", "samples_ts", "samples_prompt_ns", "samples_gen_ns")


def values_of(result: Result) -> dict[str, Any]:
    """All fields and samples of one test."""
    setup, test, rate = result.setup, result.test, result.samples_ts
    values = {
        **_CONSTANT_FIELDS,
        "build_commit": f"llama-k3 {__version__}",
        "build_number": 0,
        "cpu_info": cpu_name(),
        "gpu_info": "",
        "backends": BACKEND,
        "model_filename": setup.model,
        "model_type": result.model.description,
        "model_size": result.model.size,
        "model_n_params": result.model.n_params,
        "n_batch": setup.n_batch,
        "n_ubatch": setup.n_ubatch,
        "n_threads": setup.n_threads,
        "type_k": setup.type_k,
        "type_v": setup.type_k,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": result.time,
        "avg_ns": round(mean(result.samples_ns)),
        "stddev_ns": round(deviation(result.samples_ns)),
        "avg_ts": round(mean(rate), 6),
        "stddev_ts": round(deviation(rate), 6),
        "test": test.name,
        "filled": result.filled,
        "median_ns": round(median(result.samples_ns)),
        "median_ts": round(median(rate), 6),
        "avg_prompt_ts": round(mean(result.prompt_ts), 6),
        "avg_gen_ts": round(mean(result.gen_ts), 6),
        "bytes_per_token": round(result.bytes_per_token),
        "ms_per_token_by_kind": {kind: round(ms, 6) for kind, ms in result.kinds.items()},
        "samples_ns": result.samples_ns,
        "samples_ts": [round(value, 6) for value in rate],
        "samples_prompt_ns": list(result.prompt_ns),
        "samples_gen_ns": list(result.gen_ns),
    }
    return {name: values[name] for name in (*FIELDS, *OWN_FIELDS, *_SAMPLES)}


class Report:
    """Writes results as they come."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def begin(self) -> None:
        """Before the first result."""

    def add(self, result: Result) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """After the last result."""

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class JsonReport(Report):
    """One array of objects."""

    _separator = "[\n"

    def add(self, result: Result) -> None:
        lines = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in values_of(result).items()]
        self._write(self._separator + "  {\n" + ",\n".join(lines) + "\n  }")
        self._separator = ",\n"

    def end(self) -> None:
        self._write(("[" if self._separator == "[\n" else "") + "\n]\n")


class JsonlReport(Report):
    """One object a line."""

    def add(self, result: Result) -> None:
        self._write(json.dumps(values_of(result)) + "\n")


class CsvReport(Report):
    """Everything but the samples."""

    def begin(self) -> None:
        csv.writer(self._out, lineterminator="\n").writerow((*FIELDS, *OWN_FIELDS))

    def add(self, result: Result) -> None:
        values = values_of(result)
        row = [_csv_text(values[name]) for name in (*FIELDS, *OWN_FIELDS)]
        csv.writer(self._out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow(row)
        self._out.flush()


def _csv_text(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value) if value else ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Column:
    """Of the table. A `width` below zero aligns to the left."""

    title: str
    width: int

    def header(self) -> str:
        return self.pad(self.title)

    def rule(self) -> str:
        return "-" * (abs(self.width) - 1) + (":" if self.width > 0 else "-")

    def pad(self, text: str) -> str:
        return text.ljust(-self.width) if self.width < 0 else text.rjust(self.width)


class MarkdownReport(Report):
    """A table, with columns for the parameters that vary or differ from their defaults."""

    def __init__(self, out: TextIO, grid: Grid, defaults: Grid, by_layer_kind: bool) -> None:
        super().__init__(out)
        self._columns = [Column("model", -30), Column("size", 10), Column("params", 10)]
        self._columns += [Column("backend", -10), Column("threads", 7)]
        for name, width in (("n_batch", 7), ("n_ubatch", 8), ("type_k", 6)):
            values = list(getattr(grid, name))
            if len(values) > 1 or values != list(getattr(defaults, name)):
                self._columns.append(Column(name, width))
        self._columns += [Column("test", 15), Column("t/s", 20)]
        if any(pp and tg for pp, tg in grid.n_pg):
            self._columns += [Column("pp t/s", 10), Column("tg t/s", 10)]
        if by_layer_kind:
            self._columns.append(Column("ms/token by kind of layer", -50))

    def begin(self) -> None:
        self._row([column.header() for column in self._columns])
        self._row([column.rule() for column in self._columns])

    def add(self, result: Result) -> None:
        cells = _cells(result)
        self._row([column.pad(cells[column.title]) for column in self._columns])

    def end(self) -> None:
        self._write(f"\nbuild: llama-k3 {__version__} (0)\n")

    def _row(self, cells: list[str]) -> None:
        self._write("| " + " | ".join(cells) + " |\n")


def _cells(result: Result) -> dict[str, str]:
    size, n_params, rate = result.model.size, result.model.n_params, result.samples_ts
    return {
        "model": result.model.description,
        "size": f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB",
        "params": f"{n_params / 1e9:.2f} B" if n_params >= 1e9 else f"{n_params / 1e6:.2f} M",
        "backend": BACKEND,
        "threads": str(result.setup.n_threads),
        "n_batch": str(result.setup.n_batch),
        "n_ubatch": str(result.setup.n_ubatch),
        "type_k": result.setup.type_k,
        "test": result.test.name,
        "t/s": f"{mean(rate):.2f} ± {deviation(rate):.2f}",
        "pp t/s": f"{mean(result.prompt_ts):.2f}" if result.prompt_ts else "",
        "tg t/s": f"{mean(result.gen_ts):.2f}" if result.gen_ts else "",
        "ms/token by kind of layer": ", ".join(f"{kind} {ms:.3f}" for kind, ms in result.kinds.items()),
    }


def make_report(name: str, out: TextIO, grid: Grid, defaults: Grid, by_layer_kind: bool) -> Report:
    """The report of a format of FORMATS."""
    if name == "md":
        return MarkdownReport(out, grid, defaults, by_layer_kind)
    reports: dict[str, type[Report]] = {"csv": CsvReport, "json": JsonReport, "jsonl": JsonlReport}
    return reports[name](out)
