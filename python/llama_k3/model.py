"""Model: a loaded GGUF file, its description, its tokenizer, and the contexts made from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ._lib import Callbacks, Handle, call, ffi, lib, path_bytes
from .arguments import integer, integers
from .context import Context, ContextParams, DecodeProgress, Memory, memory_of
from .generate import generate_text
from .sampling import Sampler
from .tokenizer import Tokenizer

_LAYER_KINDS = {lib.LLAMA_K3_LAYER_KDA: "kda", lib.LLAMA_K3_LAYER_MLA: "mla"}


@dataclass(frozen=True)
class ModelInfo:
    """What the file says about the model. An id is -1 where the file names none; `digest` identifies it."""

    architecture: str
    n_layer: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_head: int
    n_expert: int
    n_expert_used: int
    bos_id: int
    eos_id: int
    pad_id: int
    n_params: int
    n_bytes: int
    digest: int


class Metadata(Mapping[str, Any]):
    """The file's metadata by key: int, float, bool, str or a list of them. Read when asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._entries: dict[str, tuple[int, int, bool, int]] = {}
        entry = ffi.new("llama_k3_meta *")
        with model._borrow() as pointer:
            for index in range(lib.llama_k3_model_meta_count(pointer)):
                lib.llama_k3_model_meta_at(pointer, index, entry)
                key = ffi.string(entry.key).decode("utf-8", "replace")
                self._entries[key] = (index, entry.type, entry.is_array, entry.count)

    def __getitem__(self, key: str) -> Any:
        index, kind, is_array, count = self._entries[key]
        value = ffi.new("llama_k3_meta_value *")
        values = []
        with self._model._borrow() as pointer:
            for element in range(count):
                lib.llama_k3_model_meta_value_at(pointer, index, element, value)
                values.append(_meta_value(kind, value))
        return values if is_array else values[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _meta_value(kind: int, value: Any) -> int | float | bool | str:
    if kind == lib.LLAMA_K3_META_FLOAT:
        return float(value.f)
    if kind == lib.LLAMA_K3_META_BOOL:
        return bool(value.i)
    if kind == lib.LLAMA_K3_META_STRING:
        return bytes(ffi.buffer(value.s, value.s_size)).decode("utf-8", "replace")
    return int(value.i)


def available_cpus(cgroup_quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs that this process may run on, at least 1: its affinity, and the limit that a container sets.

    `cgroup_quota` holds "QUOTA PERIOD" in microseconds, or "max PERIOD" for no limit.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, cgroup_quota.read_text().split())
    except (OSError, ValueError):
        return count
    return max(1, min(count, quota // period))


class Model(Handle):
    """A GGUF file, mapped and checked. Immutable; threads may share it. A context manager.

    Contexts keep what they need of a closed model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n_threads: int | None = None,
        progress: Callable[[float], None] | None = None,
        mmap: bool = True,
    ) -> None:
        """Load `path` (any part of a split model). A file that cannot be used is a ModelFileError.

        `n_threads`: of its contexts, by default every CPU available. `progress(fraction)` follows the load.
        `mmap`: map the file, which starts at once and may be larger than memory; False reads it into memory
        of its own in huge pages, which decodes faster.
        """
        threads = available_cpus() if n_threads is None else integer("n_threads", n_threads, 1, 2**31 - 1)
        callbacks = Callbacks(progress)
        params = ffi.new("llama_k3_model_params *")
        params.progress = lib.k3_py_load_progress
        params.progress_user = callbacks.owner
        params.copy = not mmap
        out = ffi.new("llama_k3_model **")
        callbacks.call(lib.llama_k3_model_load, path_bytes(path), params, out)
        super().__init__("model", out[0], lib.llama_k3_model_free)
        self.n_threads = threads
        self.info = self._read_info()
        self._tokenizer: Tokenizer | None = None
        self._metadata: Metadata | None = None

    def _read_info(self) -> ModelInfo:
        info = ffi.new("llama_k3_model_info *")
        with self._borrow() as pointer:
            lib.llama_k3_model_get_info(pointer, info)
        values = {field.name: getattr(info, field.name) for field in fields(ModelInfo)}
        values["architecture"] = ffi.string(info.architecture).decode()
        return ModelInfo(**values)

    @property
    def architecture(self) -> str:
        """kimi-k3 or kimi-linear."""
        return self.info.architecture

    @property
    def n_vocab(self) -> int:
        return self.info.n_vocab

    @property
    def layer_kinds(self) -> list[str]:
        """ "kda" or "mla" of each layer."""
        with self._borrow() as pointer:
            return [_LAYER_KINDS[lib.llama_k3_model_layer_kind(pointer, i)] for i in range(self.info.n_layer)]

    @property
    def metadata(self) -> Metadata:
        if self._metadata is None:
            self._metadata = Metadata(self)
        return self._metadata

    @property
    def tokenizer(self) -> Tokenizer:
        """Made on first use. ModelVocabularyError where the file's vocabulary is not Kimi's kind."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_metadata(self.metadata)
        return self._tokenizer

    def context(
        self,
        n_ctx: int = 4096,
        n_seq_max: int = 1,
        kv_type: str = "bf16",
        n_ubatch: int = 512,
        snapshot_every: int = 4096,
        snapshot_bytes: int = 1 << 30,
        progress: DecodeProgress | None = None,
    ) -> Context:
        """A context with empty sequences; see ContextParams. `progress(done, wanted)`: see decode."""
        params = ContextParams(
            n_ctx, n_seq_max, kv_type, n_ubatch, self.n_threads, snapshot_every, snapshot_bytes
        )
        with self._borrow() as pointer:
            return Context(pointer, self.n_vocab, params, progress)

    def memory(
        self, n_ctx: int = 4096, n_seq_max: int = 1, kv_type: str = "bf16", n_ubatch: int = 512
    ) -> Memory:
        """Bytes by part that such a context would take, without making it."""
        params = ContextParams(n_ctx, n_seq_max, kv_type, n_ubatch, self.n_threads)
        out = ffi.new("llama_k3_memory *")
        with self._borrow() as pointer:
            call(lib.llama_k3_context_estimate, pointer, params.to_c(), out)
        return memory_of(out)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = 256,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Iterator[str]:
        """Continue a text (its special tokens are plain text) or token ids; yields text as it comes.

        Ends after `max_tokens`, at a token that ends a turn or the text, or before a `stop` string, which is
        never shown. temperature 0 takes the likeliest token. `seed` None draws one.
        """
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        else:
            tokens = [int(token) for token in integers("prompt", prompt, 0, self.n_vocab - 1)]
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        sampler = Sampler(temperature, top_k, top_p, min_p, seed)
        return generate_text(self, tokens, max_tokens, sampler, stops)
