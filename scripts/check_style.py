"""Hold the sources to the project's rules of size, opening comments and dependency direction.

Prints one line for each violation and exits with 1 when there is any. Function limits are lizard's to count.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("convert", "ggml_k3", "llama_k3", "python", "scripts", "tests")
C_FOLDERS = ("ggml_k3", "llama_k3", "python", "tests")
MAX_FILE_LINES = 799
MAX_HEADER_LINES = 250
MAX_FUNCTION_LINES = 150
MAX_BRANCHES = 25

PUBLIC_HEADER = Path("llama_k3/include/llama_k3.h")
# Calls that end the process or print. A member of that name (`params->abort(...)`) is another thing.
FORBIDDEN_CALL = re.compile(
    r"(?<![\w.>])(_?exit|_Exit|quick_exit|abort|v?f?printf|puts|fputs|putchar|perror)\s*\("
)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
EXTENSION_IMPORT = re.compile(
    r"^\s*(from \S*_ffi import|from \S+ import \(?_ffi|import \S*_ffi)", re.MULTILINE
)
# What the C files of a folder may include beside their own headers, and what Python files may not import.
ALLOWED_INCLUDES = {
    "ggml_k3": re.compile(r"ggml(-\w+)?\.h"),
    "llama_k3": re.compile(r"ggml(-\w+)?\.h|gguf\.h|ggml_k3\w*\.h"),
    "python": re.compile(r"llama_k3\.h"),
}
FORBIDDEN_IMPORTS = {
    "convert": {"llama_k3", "scripts", "tests"},
    "python": {"convert", "llama_k3_convert", "scripts", "tests"},
}


def source_files(root: Path, folders: tuple[str, ...], *suffixes: str) -> Iterator[Path]:
    """Files with these suffixes, relative to the root, in a fixed order."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(root)


def check_length(root: Path) -> Iterator[str]:
    for path in source_files(root, FOLDERS, ".py", ".c", ".h", ".cu"):
        limit = MAX_HEADER_LINES if path == PUBLIC_HEADER else MAX_FILE_LINES
        lines = len((root / path).read_text().splitlines())
        if lines > limit:
            yield f"{path}: found {lines} lines, wanted at most {limit}"


def check_opening(root: Path) -> Iterator[str]:
    """Every file says first what it is for; an empty package marker has nothing to say."""
    for path in source_files(root, FOLDERS, ".py"):
        text = (root / path).read_text()
        if text.strip() and not ast.get_docstring(ast.parse(text)):
            yield f"{path}: found no docstring, wanted one that tells its role"
    for path in source_files(root, C_FOLDERS, ".c", ".h", ".cu"):
        if not (root / path).read_text().startswith(("//", "/*")):
            yield f"{path}: found no comment in the first line, wanted one that tells its role"
    for name in ("CMakeLists.txt", "python/CMakeLists.txt", "Makefile", "pyproject.toml", ".ci/run"):
        text = (root / name).read_text() if (root / name).exists() else ""
        if not re.sub(r"\A#!.*\n", "", text).startswith("#"):
            yield f"{name}: found no comment at the top, wanted one that tells its role"


def check_public_header(root: Path) -> Iterator[str]:
    for number, line in enumerate((root / PUBLIC_HEADER).read_text().splitlines(), 1):
        if "ggml" in line:
            yield f"{PUBLIC_HEADER}:{number}: found ggml, wanted a header without it"


def check_calls(root: Path) -> Iterator[str]:
    """The libraries neither end the process nor print."""
    for path in source_files(root, ("llama_k3", "ggml_k3"), ".c", ".h"):
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            code = line.split("//", 1)[0]
            if found := FORBIDDEN_CALL.search(code):
                yield f"{path}:{number}: found a call of {found.group(1)}, wanted a status and a message"


def check_includes(root: Path) -> Iterator[str]:
    """python -> llama_k3 -> ggml_k3 -> ggml."""
    for folder, allowed in ALLOWED_INCLUDES.items():
        own = {path.name for path in source_files(root, (folder,), ".h")}
        for path in source_files(root, (folder,), ".c", ".h", ".cu"):
            for name in INCLUDE.findall((root / path).read_text()):
                if Path(name).name not in own and not allowed.fullmatch(name):
                    yield f"{path}: found an include of {name}, wanted only what {folder} stands on"


def check_imports(root: Path) -> Iterator[str]:
    for folder, forbidden in FORBIDDEN_IMPORTS.items():
        for path in source_files(root, (folder,), ".py"):
            for name in imported_packages((root / path).read_text()) & forbidden:
                yield f"{path}: found an import of {name}, wanted none from {folder}"
    importers = [
        path
        for path in source_files(root, ("python",), ".py")
        if EXTENSION_IMPORT.search((root / path).read_text())
    ]
    if [path.name for path in importers] != ["_lib.py"]:
        yield f"python: found imports of _ffi in {[str(path) for path in importers]}, wanted _lib.py alone"


def imported_packages(text: str) -> set[str]:
    """First parts of the absolute imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def check_functions(root: Path) -> Iterator[str]:
    limits = ["-L", str(MAX_FUNCTION_LINES), "-C", str(MAX_BRANCHES), "-w"]
    paths = [str(root / folder) for folder in FOLDERS if (root / folder).exists()]
    done = subprocess.run(
        [sys.executable, "-m", "lizard", *limits, *paths], capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield from (done.stdout + done.stderr).strip().splitlines()


CHECKS = (
    check_length,
    check_opening,
    check_public_header,
    check_calls,
    check_includes,
    check_imports,
    check_functions,
)


def violations(root: Path) -> list[str]:
    return [line for check in CHECKS for line in check(root)]


def main() -> int:
    found = violations(ROOT)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
