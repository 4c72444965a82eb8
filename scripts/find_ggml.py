"""Print the folder of ggml's CMake package inside the installed libggml-python, for CMakeLists.txt."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def find_ggml_cmake_dir() -> Path:
    """The folder that holds ggml-config.cmake; ModuleNotFoundError when libggml-python is not installed."""
    spec = importlib.util.find_spec("libggml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("libggml-python is not installed")
    for config in sorted(Path(spec.origin).parent.glob("lib*/cmake/ggml/ggml-config.cmake")):
        return config.parent
    raise ModuleNotFoundError(f"no lib*/cmake/ggml/ggml-config.cmake in {Path(spec.origin).parent}")


if __name__ == "__main__":
    try:
        print(find_ggml_cmake_dir())
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}")
