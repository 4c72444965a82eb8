"""scripts/check_style.py: each rule notices what breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_style

GOOD = {
    "CMakeLists.txt": "# role\n",
    "python/CMakeLists.txt": "# role\n",
    "Makefile": "# role\n",
    "pyproject.toml": "# role\n",
    ".ci/run": "#!/bin/sh\n# role\n",
    "llama_k3/include/llama_k3.h": "// role\n",
    "llama_k3/src/a.c": '// role\n#include "llama_k3.h"\nint f(void) { return snprintf(0, 0, ""); }\n',
    "ggml_k3/src/b.c": '// role\n#include "ggml-cpu.h"\nint g(struct s * p) { return p->abort(1); }\n',
    "python/llama_k3/_lib.py": '"""Role."""\n\nfrom ._ffi import ffi\n',
    "convert/__init__.py": "",
    "convert/a.py": '"""Role."""\n\nimport numpy\n',
}
LONG_FUNCTION = "// role\nint f(int x) {\n" + "    x += 1;\n" * 151 + "    return x;\n}\n"
BRANCHES = "// role\nint f(int x) {\n" + "    if (x) x--;\n" * 26 + "    return x;\n}\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_clean_project(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert check_style.violations(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("convert/b.py", '"""Role."""\n' + "x = 1\n" * 799, "convert/b.py: found 800 lines"),
        ("llama_k3/include/llama_k3.h", "// role\n" * 251, "found 251 lines, wanted at most 250"),
        ("llama_k3/include/llama_k3.h", "// role, on ggml\n", "llama_k3.h:1: found ggml"),
        ("convert/b.py", "x = 1\n", "convert/b.py: found no docstring"),
        ("ggml_k3/src/c.c", "int x;\n", "ggml_k3/src/c.c: found no comment"),
        ("Makefile", "all:\n", "Makefile: found no comment"),
        (
            "llama_k3/src/c.c",
            "// role\nvoid f(void) { exit(1); }\n",
            "llama_k3/src/c.c:2: found a call of exit",
        ),
        ("ggml_k3/src/c.c", '// role\nvoid f(void) { printf("x"); }\n', "c.c:2: found a call of printf"),
        ("llama_k3/src/c.c", '// role\n#include "Python.h"\n', "found an include of Python.h"),
        ("ggml_k3/src/c.c", '// role\n#include "llama_k3.h"\n', "found an include of llama_k3.h"),
        ("python/ffi/c.c", '// role\n#include "ggml.h"\n', "found an include of ggml.h"),
        ("convert/b.py", '"""Role."""\nfrom llama_k3 import Model\n', "found an import of llama_k3"),
        ("python/llama_k3/b.py", '"""Role."""\nimport convert.cli\n', "found an import of convert"),
        ("python/llama_k3/b.py", '"""Role."""\nfrom llama_k3._ffi import lib\n', "wanted _lib.py alone"),
        ("llama_k3/src/c.c", LONG_FUNCTION, "length"),
        ("llama_k3/src/c.c", BRANCHES, "27 CCN"),
    ],
)
def test_each_rule_notices(tmp_path: Path, name: str, text: str, found: str) -> None:
    write(tmp_path, {**GOOD, name: text})
    lines = check_style.violations(tmp_path)
    assert len(lines) == 1
    assert found in lines[0]
