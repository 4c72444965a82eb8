"""llama-bench: its arguments, reports held against llama.cpp's own, depths, and what it refuses.

tests/data/llama-bench holds the output of llama.cpp's llama-bench (b11434) for the shipped checkpoint:

    llama-bench -m tiny-k3.gguf -r 2 -p 8 -n 4 -pg 8,4 -d 0,16-32+16 -t 1           depths.md
    llama-bench -m tiny-k3.gguf -r 2 -p 8-16*2 -n 0 -b 64,128 -ub 32 -t 1,2         varying.md
    llama-bench -m tiny-k3.gguf -r 2 -p 8 -n 0 -t 1 -o json                         result.json
    llama-bench -m tiny-k3.gguf -r 2 -p 8 -n 0 -t 1 -o csv | head -1                fields.csv
"""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from llama_k3.bench.grid import BenchTest, Grid, Setup, parse_integers, parse_pair
from llama_k3.bench.plot import draw, series_of
from llama_k3.bench.report import FIELDS, OWN_FIELDS
from llama_k3.bench.result import ModelFacts, Result, cpu_name
from llama_k3.bench.runner import Depth, Runner, ms_by_kind
from llama_k3.cli.bench import main
from llama_k3.errors import ArgumentError

from llama_k3 import Context, Model

GOLDEN = Path(__file__).parents[1] / "data" / "llama-bench"


def result(test: BenchTest, prompt_ns: list[int], gen_ns: list[int], **setup: Any) -> Result:
    values = {"model": "x.gguf", "n_batch": 2048, "n_ubatch": 512, "type_k": "bf16", "n_threads": 1, **setup}
    return Result(Setup(**values), test, ModelFacts("x", 1, 1), "", False, prompt_ns, gen_ns, 0.0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("512", [512]),
        ("0,64,8", [0, 64, 8]),
        ("1-4", [1, 2, 3, 4]),
        ("0-1024+512", [0, 512, 1024]),
        ("0-1000+512", [0, 512]),
        ("64-600*2", [64, 128, 256, 512]),
        ("1,2-6*3,9", [1, 2, 6, 9]),
    ],
)
def test_integers(text: str, wanted: list[int]) -> None:
    assert parse_integers(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "x", "1,", "-1", "1-", "4-1", "1-9+0", "0-8*2", "1-9*1", "1 ,2", "99999999999", "0-2000000000"],
)
def test_integers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="found"):
        parse_integers(text)


def test_pair() -> None:
    assert parse_pair("512,128") == (512, 128)
    for text in ("512", "1,2,3", "1,x", "-1,2"):
        with pytest.raises(ValueError, match="wanted PROMPT,GENERATE"):
            parse_pair(text)


@pytest.mark.parametrize(
    ("test", "name"),
    [
        (BenchTest(512, 0, 0), "pp512"),
        (BenchTest(0, 128, 0), "tg128"),
        (BenchTest(512, 128, 0), "pp512+tg128"),
        (BenchTest(0, 32, 65536), "tg32 @ d65536"),
    ],
)
def test_names(test: BenchTest, name: str) -> None:
    assert test.name == name


def test_generation_is_timed_without_the_prompt() -> None:
    """Reading takes 1 s, generating 2 s: 5 t/s, however long the prompt takes."""
    measured = result(BenchTest(100, 10, 0), [10**9], [2 * 10**9])
    assert measured.gen_ts == [5.0] and measured.prompt_ts == [100.0]
    assert measured.samples_ts == [pytest.approx(110 / 3)]


def run_main(capsys: pytest.CaptureFixture[str], *args: str | Path, code: int = 0) -> tuple[str, str]:
    assert main([str(arg) for arg in args]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.parametrize(
    ("golden", "args"),
    [
        ("depths.md", ["-p", "8", "-n", "4", "-pg", "8,4", "-d", "0,16-32+16", "-t", "1"]),
        ("varying.md", ["-p", "8-16*2", "-n", "0", "-b", "64", "-b", "128", "-ub", "32", "-t", "1,2"]),
    ],
)
def test_table_is_that_of_llama_cpp(
    golden: str, args: list[str], tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the model's name, the figures, and the own columns behind llama.cpp's."""
    wanted = (GOLDEN / golden).read_text().splitlines()[:-2]
    found = run_main(capsys, "-m", tiny_gguf, "-r", "2", *args)[0].splitlines()[:-2]
    assert len(found) == len(wanted)
    for theirs, ours in zip(wanted[:2], found[:2], strict=True):
        assert ours.startswith(theirs)
    for theirs, ours in zip(wanted[2:], found[2:], strict=True):
        theirs_cells, ours_cells = (line.split("|") for line in (theirs, ours))
        assert ours_cells[2:-1][: len(theirs_cells) - 4] == theirs_cells[2:-2]
        rate = ours_cells[len(theirs_cells) - 2]
        assert re.fullmatch(r" +\d+\.\d\d ± \d+\.\d\d ", rate)
        assert len(ours) == len(found[0])


def test_pg_has_its_parts_in_the_table(tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_main(capsys, "-m", tiny_gguf, "-p", "0", "-n", "0", "-pg", "8,4", "-r", "1")[0].splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[-3:-1]] == ["pp t/s", "tg t/s"]
    assert all(float(cell) > 0 for cell in lines[2].split("|")[-3:-1])


def test_json_has_the_fields_of_llama_cpp(tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same names in the same order with values of the same types; sizes of the model agree."""
    (theirs,) = json.loads((GOLDEN / "result.json").read_text())
    out = run_main(capsys, "-m", tiny_gguf, "-p", "8", "-n", "0", "-pg", "8,3", "-r", "2", "-o", "json")[0]
    ours, both = json.loads(out)
    assert [name for name in ours if name in theirs] == list(theirs)
    for name, value in theirs.items():
        assert type(ours[name]) is type(value), name
    for name in ("model_size", "model_n_params", "n_batch", "n_ubatch", "n_prompt", "cpu_info", "backends"):
        assert ours[name] == theirs[name] or name == "cpu_info"
    assert len(ours["samples_ns"]) == len(ours["samples_ts"]) == 2
    assert ours["avg_ts"] == pytest.approx(statistics.fmean(ours["samples_ts"]), abs=1e-5)
    assert ours["stddev_ts"] == pytest.approx(statistics.stdev(ours["samples_ts"]), abs=1e-5)
    assert ours["median_ns"] == pytest.approx(statistics.median(ours["samples_ns"]), abs=1)
    parts = zip(both["samples_prompt_ns"], both["samples_gen_ns"], strict=True)
    assert both["samples_ns"] == [prompt + gen for prompt, gen in parts]
    assert both["test"] == "pp8+tg3" and both["bytes_per_token"] > 1e6


def test_jsonl_and_csv(tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["-m", str(tiny_gguf), "-p", "8", "-n", "3", "-r", "1", "-d", "4"]
    lines = run_main(capsys, *args, "-o", "jsonl")[0].splitlines()
    assert [json.loads(line)["test"] for line in lines] == ["pp8 @ d4", "tg3 @ d4"]
    out = run_main(capsys, *args, "-o", "csv")[0]
    assert out.startswith((GOLDEN / "fields.csv").read_text().strip() + ",test,")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["test"] for row in rows] == ["pp8 @ d4", "tg3 @ d4"]
    assert all(set(row) == {*FIELDS, *OWN_FIELDS} and None not in row.values() for row in rows)


def test_no_tests_no_rows(tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run_main(capsys, "-m", tiny_gguf, "-p", "0", "-n", "0", "-o", "json")[0]) == []


def test_order_and_defaults() -> None:
    """Tests of a depth stay together: prompts, generations, both."""
    grid = Grid(("a", "b"), (1, 2), (3,), ((4, 5),), (0, 9), (10,), (20,), ("f16",), (1, 2))
    names = [test.name for test in grid.tests()]
    assert names == ["pp1", "pp2", "tg3", "pp4+tg5", "pp1 @ d9", "pp2 @ d9", "tg3 @ d9", "pp4+tg5 @ d9"]
    assert [(setup.model, setup.n_threads) for setup in grid.setups()] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["-p", "8"],
        ["-m", "x.gguf", "-p", "8-4"],
        ["-m", "x.gguf", "-n", "-1"],
        ["-m", "x.gguf", "-pg", "8"],
        ["-m", "x.gguf", "-t", "0"],
        ["-m", "x.gguf", "-b", "0"],
        ["-m", "x.gguf", "-r", "1,2"],
        ["-m", "x.gguf", "-ctk", "q4_0"],
        ["-m", "x.gguf", "-o", "sql"],
        ["-m", "x.gguf", "--plot", "x.jpg"],
        ["-m", "x.gguf", "--plot", "/nowhere/x.png"],
        ["-m", "x.gguf", "-ngl", "99"],
        ["-m", "x.gguf", "stray"],
    ],
)
def test_wrong_flags(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(args)
    out, err = capsys.readouterr()
    assert exit_info.value.code == 2 and not out
    assert err.startswith("error: ") and err.count("\n") == 1


def test_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run_main(capsys, "-m", tmp_path / "none.gguf", code=1)
    assert not out and err.startswith("error: ") and "none.gguf" in err and err.count("\n") == 1


def test_underscores_in_flags(tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_main(capsys, "-m", tiny_gguf, "--n_prompt", "8", "--n_gen=0", "-r", "1", "-o", "jsonl")[0]
    assert json.loads(out)["test"] == "pp8"


def test_as_a_command(tiny_gguf: Path) -> None:
    """Progress goes to standard error, one line for each step."""
    args = ["-m", str(tiny_gguf), "-p", "8", "-n", "2", "-d", "4", "-r", "2", "--progress"]
    done = subprocess.run(
        [sys.executable, "-m", "llama_k3.cli.bench", *args], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 6
    assert done.stderr.splitlines() == [
        f"llama-bench: benchmark {index}/2: {text}"
        for index, what in ((1, "prompt"), (2, "generation"))
        for text in (
            "starting",
            "warmup run",
            *(f"{part} run {n}/2" for n in (1, 2) for part in ("depth", what)),
        )
    ]


TOKENS = np.random.default_rng(3).integers(0, 700, 64)


def logits_at(model: Model, count: int) -> Any:
    with model.context(n_ctx=128, n_ubatch=16) as context:
        if count:
            context.decode(TOKENS[:count])
        return context.decode([5])


def test_every_run_starts_at_the_same_state(model: Model) -> None:
    """Back, deeper, back to a shallower depth, to none: the same bits as a new sequence of that length."""
    with model.context(n_ctx=128, n_ubatch=16, snapshot_every=0) as context:
        depth = Depth(context, 7, TOKENS, fill=False)
        for wanted in (16, 16, 48, 48, 16, 0, 32):
            depth.go_to(wanted)
            assert context.position() == wanted and context.tokens() == TOKENS[:wanted].tolist()
            found = context.decode([5])
            context.decode([7] * 11)
            np.testing.assert_array_equal(found, logits_at(model, wanted))


def test_going_deeper_reads_only_what_is_new(model: Model) -> None:
    with model.context(n_ctx=128, snapshot_every=0) as context:
        depth = Depth(context, 64, TOKENS, fill=False)
        for wanted in (16, 16, 48, 48):
            depth.go_to(wanted)
        counters = context.counters()
        assert counters.prefill.tokens + counters.decode.tokens == 48


def run_one(model: Model, tests: list[BenchTest], **options: Any) -> list[Result]:
    setup = Setup("x", 64, 32, "bf16", model.n_threads)
    return list(Runner(model, setup, tests, 2, **options).run())


def test_fill_takes_the_place_of_reading(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fill(context: Context, n: int, seq: int = 0, seed: int = 0) -> None:
        assert context.position(seq) == 0
        calls.append(n)
        context.decode(TOKENS[:n], seq)

    monkeypatch.setattr(Context, "fill", fill, raising=False)
    results = run_one(model, [BenchTest(0, 2, 0), BenchTest(0, 2, 32), BenchTest(8, 0, 32)], fill=True)
    assert calls == [32]
    assert [found.filled for found in results] == [False, True, True]


def test_library_without_fill(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Context, "fill", raising=False)
    with pytest.raises(ArgumentError, match="--fill: this build of llama_k3 has no Context.fill"):
        run_one(model, [BenchTest(0, 2, 32)], fill=True)


def test_filled_depth(tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["-m", str(tiny_gguf), "-p", "8", "-n", "2", "-d", "0,64", "-r", "2", "--fill", "-o", "json"]
    found = json.loads(run_main(capsys, *args)[0])
    assert [entry["filled"] for entry in found] == [False, False, True, True]


def test_kinds_of_layers() -> None:
    phase: Any = SimpleNamespace(tokens=4, kinds={"kda": 2.0, "mla": 1.0, "experts": 6.0, "other": 0.0})
    assert ms_by_kind(phase) == {"kda": 0.5, "mla": 0.25, "experts": 1.5, "other": 0.0}
    uncounted: Any = SimpleNamespace(tokens=4)
    with pytest.raises(ArgumentError, match="--by-layer-kind: this build"):
        ms_by_kind(uncounted)


def test_kinds_of_layers_in_reports(
    tiny_gguf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = SimpleNamespace(tokens=4, bytes=8, kinds={"kda": 2.0, "mla": 1.0})
    monkeypatch.setattr(Context, "counters", lambda self: SimpleNamespace(prefill=phase, decode=phase))
    args = ["-m", str(tiny_gguf), "-p", "0", "-n", "2", "-r", "1", "--by-layer-kind"]
    assert "| kda 0.500, mla 0.250" in run_main(capsys, *args)[0]
    (entry,) = json.loads(run_main(capsys, *args, "-o", "json")[0])
    assert entry["ms_per_token_by_kind"] == {"kda": 0.5, "mla": 0.25}


def test_lines_of_the_plot() -> None:
    """One per kind of test and setup, by depth; labels name what varies."""
    results = [
        result(BenchTest(0, 10, depth), [0, 0], [10**9, 3 * 10**9], n_threads=threads)
        for threads in (1, 2)
        for depth in (64, 0)
    ]
    lines = series_of(results)
    assert [line.label for line in lines] == ["tg10, n_threads 1", "tg10, n_threads 2"]
    assert list(lines[0].depths) == [0, 64]
    assert list(lines[0].ms) == [200.0, 200.0] and lines[0].rates[0] == pytest.approx((10 + 10 / 3) / 2)


def test_plot(tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.png"
    run_main(capsys, "-m", tiny_gguf, "-p", "8", "-n", "2", "-d", "0,16", "-r", "2", "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n") and path.stat().st_size > 10_000
    draw(tmp_path / "one.png", series_of([result(BenchTest(0, 1, 0), [0], [1])]), "a single point")


def test_cpu_name(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert cpu_name(cpuinfo) == "Some CPU @ 2 GHz"
    assert cpu_name(tmp_path / "none")
