"""Run Kimi-K3 and Kimi-Linear GGUF files: Model and Context, tokenizer, chat format and sampling."""

from ._lib import set_log_callback
from .context import Context, Counters, Memory, Phase, Snapshot
from .errors import (
    AbortedError,
    ArgumentError,
    ClosedError,
    ComputeError,
    ContextBusyError,
    ContextFullError,
    LlamaK3Error,
    ModelFileError,
    NonFiniteError,
    OutOfMemoryError,
    StateError,
)
from .model import Model, ModelInfo
from .sampling import Sampler
from .tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "ArgumentError",
    "ClosedError",
    "ComputeError",
    "Context",
    "ContextBusyError",
    "ContextFullError",
    "Counters",
    "LlamaK3Error",
    "Memory",
    "Model",
    "ModelFileError",
    "ModelInfo",
    "NonFiniteError",
    "OutOfMemoryError",
    "Phase",
    "Sampler",
    "Snapshot",
    "StateError",
    "Tokenizer",
    "set_log_callback",
]
