"""The comparison with other engines: finding the source package, and the document that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.peers.document import replace_section, section, table, write
from scripts.peers.llamacpp import FILE, address_in
from scripts.peers.measure import LLAMA_CPP, OURS, Ceiling, Measured, Plan, Point, add_samples, bench_command


@pytest.mark.parametrize(
    "listing",
    [
        json.dumps(
            {"files": [{"filename": "x", "url": "y"}, {"filename": FILE, "url": f"https://h/{FILE}"}]}
        ),
        f'<a href="https://h/x.tar.gz">x</a>\n<a href="https://h/{FILE}#sha256=00">{FILE}</a>',
    ],
)
def test_address_in_an_index_page(listing: str) -> None:
    assert address_in(listing) == f"https://h/{FILE}"
    assert address_in(listing.replace(FILE, "other")) is None


def test_command_and_samples() -> None:
    plan = Plan(Path("m.gguf"), [2], 512, 32, {OURS: [0, 64], LLAMA_CPP: [0]}, 3)
    command = bench_command(plan, OURS, ["bench"], 2)
    assert " ".join(command) == "bench -m m.gguf -p 512 -n 32 -d 0,64 -t 2 -r 1 -o json"
    points: dict[tuple[str, int, str, int], Point] = {}
    for rate in (5.0, 7.0):
        entry = {"n_prompt": 0, "n_gen": 32, "n_depth": 64, "n_threads": 2, "samples_ts": [rate]}
        add_samples(points, OURS, [entry])
    assert points == {(OURS, 2, "tg32", 64): Point(OURS, 2, "tg32", 64, [5.0, 7.0])}


def measured() -> Measured:
    return Measured(
        "about",
        "machine",
        [
            Point(OURS, 2, "tg32", 0, [30.0, 10.0, 20.0], 10**9),
            Point(LLAMA_CPP, 2, "tg32", 0, [10.0], 0),
            Point(OURS, 2, "tg32", 64, [5.0], 10**9),
            Point(OURS, 2, "pp512", 0, [100.0], 10**6),
        ],
        [Ceiling(2, 40.0, 100.0)],
        {OURS: ["llama-bench ..."]},
    )


def test_table() -> None:
    """Medians, their ratio, and memory traffic of the generation: 20 t/s of 1 GB are half of 40 GB/s."""
    rows = table(measured(), Ceiling(2, 40.0, 100.0)).splitlines()[2:]
    head = (
        "| test | depth | llama-k3 t/s | llama.cpp t/s | against llama.cpp | llama-k3 GB/s | of memory read |"
    )
    assert rows[0] == head
    assert rows[2:] == [
        "| pp512 | 0 | 100.00 ± 0.00 | - | - |  |  |",
        "| tg32 | 0 | 20.00 ± 10.00 | 10.00 ± 0.00 | 2.00x | 20.0 | 50 % |",
        "| tg32 | 64 | 5.00 ± 0.00 | - | - | 5.0 | 12 % |",
    ]
    assert "| 2 | 40.0 | 100 |" in section("x", measured(), [])


def test_sections_are_replaced_in_place() -> None:
    text = replace_section(replace_section("# Title\n", "a", "one"), "b", "two")
    again = replace_section(text, "a", "three")
    assert again == text.replace("one", "three") and again.index("three") < again.index("two")


def test_document(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = tmp_path / "docs" / "performance.md"
    for _ in range(2):
        write("x", measured(), document)
    folder = document.with_suffix("")
    assert sorted(path.name for path in folder.iterdir()) == ["x-decode.png", "x-prefill.png", "x.json"]
    assert document.read_text().count("## x") == 1
    assert "(performance/x-decode.png)" in document.read_text()
    assert Measured.from_json(json.loads((folder / "x.json").read_text())) == measured()
