"""Every planted fault of scripts/run_mutants.py turns a runtime test red; those of speed are the script's."""

from __future__ import annotations

import re

from scripts import run_mutants


def test_every_fault_in_the_sources_is_listed() -> None:
    sources = [
        path for folder in ("ggml_k3", "llama_k3") for path in (run_mutants.ROOT / folder).rglob("*.c")
    ]
    planted = {
        name for path in sources for name in re.findall(r'GGML_K3_MUTANT\("([^"]+)"\)', path.read_text())
    }
    assert planted == set(run_mutants.MUTANTS)


def test_every_fault_is_noticed() -> None:
    run_mutants.build(run_mutants.SITE)
    names = [name for name in run_mutants.MUTANTS if name not in run_mutants.SPEED]
    assert run_mutants.run(run_mutants.SITE, names) == []
