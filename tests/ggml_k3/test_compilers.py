"""What compilers make of the kernels: NEON compiles, and the tile kernels keep their sums in registers."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import libggml
import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "ggml_k3" / "src" / "cpu"
CROSS = "aarch64-linux-gnu-gcc"
INCLUDES = ["-I", str(ROOT / "ggml_k3/include"), "-I", str(ROOT / "ggml_k3/src")]
AVX512 = ["f", "bw", "dq", "vl", "vnni", "bf16", "vbmi"]


def compile_kernel(compiler: str, source: Path, out: Path, *flags: str) -> None:
    headers = ["-I", str(Path(libggml.__file__).parent / "include")]
    command = [
        compiler,
        "-std=c11",
        "-O3",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        *INCLUDES,
        *headers,
    ]
    done = subprocess.run(
        [*command, *flags, str(source), "-o", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.skipif(
    shutil.which(CROSS) is None and "CI" not in os.environ, reason=f"no {CROSS}; .ci/run installs it"
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiled natively here")
@pytest.mark.parametrize("source", sorted(KERNELS.glob("*_neon.c")), ids=lambda path: path.stem)
def test_neon_compiles(source: Path, tmp_path: Path) -> None:
    compile_kernel(CROSS, source, tmp_path / "kernel.o", "-c")


def basic_blocks(assembly: str, instruction: str) -> list[str]:
    """Stretches between labels and jumps that hold at least 6 of the instruction."""
    blocks = re.split(r"^\.L\w+:|^\s+j\w+\s.*$", assembly, flags=re.MULTILINE)
    return [block for block in blocks if block.count(instruction) >= 6]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels of x86-64")
@pytest.mark.parametrize("instruction", ["vpdpbusd", "vdpbf16ps"])
def test_accumulators_of_the_tile_kernels_stay_in_registers(instruction: str, tmp_path: Path) -> None:
    """GCC 12 puts them on the stack when a loop over them is not unrolled, which halves the speed."""
    flags = ["-mavx2", "-mfma", "-mf16c", "-mbmi2", *(f"-mavx512{name}" for name in AVX512)]
    compile_kernel("cc", KERNELS / "matmul_tile_avx512.c", tmp_path / "tile.s", *flags, "-S")
    blocks = basic_blocks((tmp_path / "tile.s").read_text(), instruction)
    assert blocks, f"no block with {instruction} found"
    for block in blocks:
        stores = re.findall(r"vmov\w+\s+%zmm\d+, .*\(%r[sb]p.*", block)
        assert not stores, f"accumulators are stored on the stack: {stores[:3]}"
