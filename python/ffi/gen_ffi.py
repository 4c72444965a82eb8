"""Write the C source of the extension llama_k3._ffi: the declarations are those of llama_k3.h itself.

Run by python/CMakeLists.txt: gen_ffi.py LLAMA_K3_H OUTPUT_C
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent


def declarations(header: str) -> str:
    """The header without comments, preprocessor lines and the export macro: what cffi's parser reads."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    code = re.sub(r"^[ \t]*#.*(\\\n.*)*$", "", code, flags=re.MULTILINE)
    return re.sub(r"\bLLAMA_K3_API\b", "", code)


def main(header_path: str, output_path: str) -> None:
    builder = FFI()
    builder.cdef(declarations(Path(header_path).read_text()))
    builder.cdef(declarations((HERE / "glue.h").read_text()).replace("static ", ""))
    builder.cdef((HERE / "callbacks.cdef").read_text())
    builder.set_source("llama_k3._ffi", (HERE / "glue.c").read_text())
    builder.emit_c_code(output_path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: gen_ffi.py LLAMA_K3_H OUTPUT_C")
    main(sys.argv[1], sys.argv[2])
