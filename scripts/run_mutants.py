"""Break the runtime in one place at a time and see that the tests notice.

    python scripts/run_mutants.py [NAME ...]

Builds the package with -DLLAMA_K3_MUTANTS=ON into build/mutants, runs the runtime tests once without a fault
(they must pass) and once per planted fault (they must fail), and prints which test caught it. Exit status 1
when a fault goes unnoticed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "mutants"

# name in the C sources: what it breaks
MUTANTS = {
    "skip-layer": "one layer is left out",
    "expert-zero": "every token goes to expert 0",
    "drop-attn-res": "no attention-residual mix",
    "decay-after-delta": "a token is decayed behind its delta correction",
    "swap-state-axes": "the KDA state is read transposed",
    "swap-nibbles": "the halves of each MXFP4 byte change places",
    "restore-other-sequence": "a restored state goes to the sequence beside it",
    "restore-wrong-position": "a cut sequence gets the state of the checkpoint before the right one",
    "biased-router": "the router's bias enters the weights",
    "softplus-gate": "softplus decay in place of the bounded gate",
    "skip-latent-norm": "no norm behind the routed experts",
    "no-output-gate": "KDA and MLA outputs are not gated",
    "lora-eps": "q_a and kv_a norms with the eps of the other norms",
    "mask-per-token": "a mask of all positions is made for every token",
    "rebuild-graph": "the graph is built anew for every token",
    "copy-state": "decode writes KDA states to another place than it reads",
    "scan-by-head": "attention reads the cache once for each head",
    "prefill-in-decode": "the time of the prefill counts as decode",
}
# Faults of the stock form; all others are in code that the fast form, the default, runs too.
STOCK_ONLY = {"decay-after-delta", "swap-state-axes", "swap-nibbles", "no-output-gate"}
SPEED = {"mask-per-token", "rebuild-graph", "copy-state", "scan-by-head", "prefill-in-decode"}
# In this order: the first failing test ends a run.
SPEED_TESTS = ["tests/test_decode_speed.py"]
TESTS = [
    "tests/runtime/test_decode.py::test_other_shapes",
    "tests/runtime/test_decode.py::test_eps_of_the_lora_norms",
    "tests/runtime/test_precision.py::test_trained_checkpoint_is_exact_in_reference_form",
    "tests/runtime/test_sequence.py::test_restore_into_another_sequence_leaves_the_others",
    "tests/runtime/test_sequence.py::test_truncate_goes_back_to_the_newest_snapshot",
]


def build(site: Path) -> None:
    """Install the package with the faults compiled in, beside a link to the installed libggml."""
    import libggml

    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--upgrade",
    ]
    options = [
        "--config-settings=cmake.define.LLAMA_K3_MUTANTS=ON",
        "--config-settings=build-dir=build/mutants-cmake",
    ]
    subprocess.run([*command, *options, "--target", str(site), str(ROOT)], check=True)
    link = site / "libggml"
    if not link.exists():
        link.symlink_to(Path(libggml.__file__).parent)


def first_failure(site: Path, mutant: str, tests: list[str]) -> str | None:
    """Run tests with one fault, or "" for none; the test that failed, None when all passed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "LLAMA_K3_MUTANT": mutant,
        "LLAMA_K3_OPS": "stock" if mutant in STOCK_ONLY else "fast",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    if result.returncode == 0:
        return None
    failed = re.search(r"^FAILED (.+?)(?: - |$)", result.stdout, re.MULTILINE)
    if result.returncode != 1 or failed is None:
        raise RuntimeError(
            f"{mutant or 'no fault'}: the tests did not run:\n{result.stdout}\n{result.stderr}"
        )
    return failed[1]


def run(site: Path, names: list[str]) -> list[str]:
    """Print a line per fault; return the names of those that went unnoticed."""
    for tests in ([TESTS] if set(names) - SPEED else []) + ([SPEED_TESTS] if set(names) & SPEED else []):
        failure = first_failure(site, "", tests)
        if failure:
            raise RuntimeError(f"without a fault {failure} failed, wanted all tests to pass")
    unnoticed = []
    for name in names:
        failure = first_failure(site, name, SPEED_TESTS if name in SPEED else TESTS)
        print(
            f"{name:24} {MUTANTS[name]:56} {'caught by ' + failure if failure else 'NOT NOTICED'}", flush=True
        )
        if failure is None:
            unnoticed.append(name)
    return unnoticed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"faults to plant: {', '.join(MUTANTS)} (all)"
    )
    names = parser.parse_args(arguments).names or list(MUTANTS)
    unknown = sorted(set(names) - set(MUTANTS))
    if unknown:
        parser.error(f"unknown fault {unknown[0]!r}, wanted one of {', '.join(MUTANTS)}")
    build(SITE)
    unnoticed = run(SITE, names)
    print(f"{len(names) - len(unnoticed)} of {len(names)} faults noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
