"""Types of the extension for mypy: cffi makes its contents from llama_k3.h."""

from typing import Any

ffi: Any
lib: Any
