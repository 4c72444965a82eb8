"""Context: sequences of one model with their hybrid cache, decode and the operations on sequences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ._lib import Callbacks, Handle, call, ffi, lib, path_bytes
from .arguments import integer, integers
from .errors import ArgumentError, NonFiniteError

Logits = npt.NDArray[np.float32]
Tokens = Sequence[int] | npt.NDArray[Any]
DecodeProgress = Callable[[int, int], None]
"""Called after each micro-batch with the tokens done and wanted."""

KV_TYPES = {
    "f32": lib.LLAMA_K3_CACHE_F32,
    "f16": lib.LLAMA_K3_CACHE_F16,
    "bf16": lib.LLAMA_K3_CACHE_BF16,
    "q8_0": lib.LLAMA_K3_CACHE_Q8_0,
}
LAYER_KINDS = ("kda", "mla", "experts", "other")
BATCH_ITEM = np.dtype({"names": ["token", "seq", "want"], "formats": ["i4", "i4", "?"], "itemsize": 12})
"""What `Context.decode_items` takes: the memory layout of llama_k3_batch_item."""
if ffi.sizeof("llama_k3_batch_item") != BATCH_ITEM.itemsize:
    raise ImportError(f"llama_k3_batch_item has {ffi.sizeof('llama_k3_batch_item')} bytes, wanted 12")


@dataclass(frozen=True)
class Memory:
    """Bytes by part.

    `weights`: mapped from the file. `latent`: MLA rows, reserved for n_ctx and committed as they are used;
    `latent_used` of these hold tokens. `state`, `window`: KDA states and convolution windows. `compute`: the
    graph's buffer. `snapshots`: of checkpoints.
    """

    weights: int
    latent: int
    latent_used: int
    state: int
    window: int
    compute: int
    snapshots: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self)) - self.latent_used


@dataclass(frozen=True)
class Phase:
    """Work of one kind: tokens and micro-batches computed, milliseconds, bytes of weights and cache moved.

    `kinds`: parts of `ms` by kind of layer: KDA, MLA, routed experts, everything else; all 0 in the
    diagnostic forms of LLAMA_K3_OPS.
    """

    tokens: int
    batches: int
    ms: float
    bytes: int
    kinds: dict[str, float]


@dataclass(frozen=True)
class Counters:
    """Micro-batches with one token a sequence count as decode, all others as prefill."""

    prefill: Phase
    decode: Phase
    graphs_built: int
    graphs_reused: int


def memory_of(value: Any) -> Memory:
    """From a C struct llama_k3_memory."""
    return Memory(**{field.name: getattr(value, field.name) for field in fields(Memory)})


def _phase_of(value: Any) -> Phase:
    kinds = {kind: getattr(value, f"ms_{kind}") for kind in LAYER_KINDS}
    return Phase(value.tokens, value.batches, value.ms, value.bytes, kinds)


@dataclass(frozen=True)
class ContextParams:
    """How a context is made. `n_ctx`: tokens a sequence can hold. `n_ubatch`: tokens computed at once.

    `kv_type`: type of the MLA rows, one of KV_TYPES. `snapshot_every`: tokens between the snapshots that a
    prefill leaves for `truncate` (0: none). `snapshot_bytes`: budget of those snapshots, all sequences
    together.
    """

    n_ctx: int = 4096
    n_seq_max: int = 1
    kv_type: str = "bf16"
    n_ubatch: int = 512
    n_threads: int = 1
    snapshot_every: int = 4096
    snapshot_bytes: int = 1 << 30

    def to_c(self) -> Any:
        """A llama_k3_context_params without callbacks. ArgumentError names what is out of its range."""
        params = ffi.new("llama_k3_context_params *")
        lib.llama_k3_context_default_params(params)
        for name, low in (
            ("n_ctx", 1),
            ("n_seq_max", 1),
            ("n_ubatch", 1),
            ("n_threads", 1),
            ("snapshot_every", 0),
        ):
            setattr(params, name, integer(name, getattr(self, name), low, 2**32 - 1))
        params.snapshot_bytes = integer("snapshot_bytes", self.snapshot_bytes, 0, 2**64 - 1)
        if self.kv_type not in KV_TYPES:
            raise ArgumentError(f"kv_type: found {self.kv_type!r}, wanted one of {', '.join(KV_TYPES)}")
        params.cache_type = KV_TYPES[self.kv_type]
        return params


@dataclass(frozen=True)
class Checkpoint:
    """A position that `truncate` goes back to. `id`: the same in copies of the sequence, which share it."""

    position: int
    id: int


class Snapshot(Handle):
    """A whole copy of a sequence, for `restore` into any context of the same model and cache type."""

    def __init__(self, pointer: Any) -> None:
        super().__init__("snapshot", pointer, lib.llama_k3_snapshot_free)
        self.size: int = lib.llama_k3_snapshot_size(pointer)
        """Bytes held."""

    @classmethod
    def of_size(cls, size: int) -> Snapshot:
        """`size` bytes that the caller fills by way of `data`; `restore` checks them. OutOfMemoryError."""
        out = ffi.new("llama_k3_snapshot **")
        call(lib.llama_k3_snapshot_new, integer("size", size, 0, 2**64 - 1), out)
        return cls(out[0])

    @classmethod
    def from_bytes(cls, block: bytes | bytearray | memoryview) -> Snapshot:
        """A copy of bytes as `data` or a file of Context.save has them; `restore` checks them."""
        snapshot = cls.of_size(len(block))
        snapshot.data()[:] = block
        return snapshot

    @property
    def position(self) -> int:
        """Tokens in the copy; -1 where the bytes are no snapshot's."""
        with self._borrow() as pointer:
            return int(lib.llama_k3_snapshot_position(pointer))

    def data(self) -> memoryview:
        """The bytes, without a copy: writable, and valid as long as the view is held."""
        with self._borrow() as pointer:
            # the view holds the buffer, which holds its pointer, whose key below holds the snapshot's memory
            start = ffi.gc(lib.llama_k3_snapshot_data(pointer), _Keep(pointer))
            return memoryview(ffi.buffer(start, self.size))


class _Keep:
    """A destructor that destroys nothing: it keeps an owner alive as long as what is inside of it."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __call__(self, pointer: Any) -> None:
        self._owner = None


class Context(Handle):
    """Sequences 0 .. n_seq_max - 1 of one model. Made by Model.context; a context manager.

    One thread at a time: a second one gets ContextBusyError. The GIL is released while the library computes.
    """

    def __init__(
        self, model: Any, n_vocab: int, params: ContextParams, progress: DecodeProgress | None = None
    ) -> None:
        """`model`: a live llama_k3_model pointer (the library keeps its own reference)."""
        c_params = params.to_c()
        self._callbacks = Callbacks(progress)
        self._callbacks.install_abort(c_params)
        if progress is not None:
            c_params.progress = lib.k3_py_decode_progress
            c_params.progress_user = self._callbacks.owner
        out = ffi.new("llama_k3_context **")
        call(lib.llama_k3_context_new, model, c_params, out)
        super().__init__("context", out[0], lib.llama_k3_context_free)
        self.params = params
        self.n_vocab = n_vocab

    def decode(self, tokens: Tokens, seq: int = 0, logits: Literal["last", "all", "none"] = "last") -> Logits:
        """Append tokens to a sequence; the logits after the last, after each, or none: float32 [n, n_vocab].

        Raises ArgumentError (also for no tokens), ContextFullError, ContextBusyError, NonFiniteError. On
        KeyboardInterrupt, which ends the call within a fraction of a second, the sequence stands behind the
        last whole micro-batch: see `position`.
        """
        if logits not in ("last", "all", "none"):
            raise ArgumentError(f"logits: found {logits!r}, wanted last, all or none")
        ids = integers("tokens", tokens, 0, self.n_vocab - 1)
        items = np.zeros(ids.size, BATCH_ITEM)
        items["token"] = ids
        items["seq"] = self._seq(seq)
        if logits == "all":
            items["want"] = True
        elif logits == "last":
            items["want"][-1:] = True
        return self._decode(items)

    def decode_batch(self, items: Iterable[tuple[int, int, bool]]) -> Logits:
        """Append (token, seq, want) in order; a row of logits for each `want`: float32 [n, n_vocab]."""
        rows = list(items)
        for index, row in enumerate(rows):
            if not isinstance(row, (tuple, list)) or len(row) != 3:
                raise ArgumentError(f"items[{index}]: found {row!r}, wanted (token, seq, want)")
        batch = np.zeros(len(rows), BATCH_ITEM)
        batch["token"] = integers("token of items", [row[0] for row in rows], 0, self.n_vocab - 1)
        batch["seq"] = integers("seq of items", [row[1] for row in rows], 0, self.params.n_seq_max - 1)
        batch["want"] = [bool(row[2]) for row in rows]
        return self._decode(batch)

    def _decode(self, items: npt.NDArray[Any]) -> Logits:
        if not items.size:
            raise ArgumentError("tokens: found none, wanted at least one")
        return self.decode_items(items, np.empty((int(items["want"].sum()), self.n_vocab), np.float32))

    def decode_items(self, items: npt.NDArray[Any], out: Logits) -> Logits:
        """As `decode_batch`, without copies: items [n] of BATCH_ITEM; the rows go to the first ones of `out`.

        `out`: float32 [at least as many rows as wanted, n_vocab]. Returns it. On NonFiniteError, whose
        `sequences` were cleared, the rows of the others are valid as far as they were computed (all of them,
        if the items were one micro-batch), and nan from there on.
        """
        if items.dtype != BATCH_ITEM or items.ndim != 1 or not items.size:
            raise ArgumentError(f"items: found {items.dtype} {items.shape}, wanted at least one BATCH_ITEM")
        if out.dtype != np.float32:
            raise ArgumentError(f"out: found {out.dtype}, wanted float32")
        with self._borrow() as pointer:
            try:
                self._callbacks.call(
                    lib.llama_k3_decode,
                    pointer,
                    ffi.from_buffer("llama_k3_batch_item[]", items),
                    items.size,
                    ffi.from_buffer("float[]", out) if out.size else ffi.NULL,
                    out.size,
                )
            except NonFiniteError as error:
                seqs = dict.fromkeys(items["seq"].tolist())
                error.sequences = tuple(s for s in seqs if not lib.llama_k3_seq_position(pointer, s))
                error.logits = out
                raise
        return out

    def position(self, seq: int = 0) -> int:
        """Tokens in the sequence."""
        with self._borrow() as pointer:
            return int(lib.llama_k3_seq_position(pointer, self._seq(seq)))

    def tokens(self, seq: int = 0) -> list[int]:
        """The tokens of the sequence."""
        copied = ffi.new("int64_t *")
        with self._borrow() as pointer:
            count = lib.llama_k3_seq_position(pointer, self._seq(seq))
            out = ffi.new("int32_t[]", count)
            call(lib.llama_k3_seq_tokens, pointer, seq, 0, out, count, copied)
        return ffi.unpack(out, copied[0]) if copied[0] else []

    def token_array(self, seq: int = 0) -> npt.NDArray[np.int32]:
        """A copy of the tokens of the sequence: int32 [position]."""
        copied = ffi.new("int64_t *")
        with self._borrow() as pointer:
            out = np.empty(lib.llama_k3_seq_position(pointer, self._seq(seq)), np.int32)
            call(
                lib.llama_k3_seq_tokens, pointer, seq, 0, ffi.from_buffer("int32_t[]", out), out.size, copied
            )
        return out

    def checkpoint(self, seq: int = 0) -> None:
        """Keep the present position for `truncate`. The oldest checkpoints of the context make room in
        `snapshot_bytes`; one that alone exceeds them is not kept."""
        with self._borrow() as pointer:
            call(lib.llama_k3_seq_checkpoint, pointer, self._seq(seq))

    def checkpoints(self, seq: int = 0) -> list[Checkpoint]:
        """What `truncate` can go back to beside 0, in ascending order."""
        found = ffi.new("int64_t *")
        with self._borrow() as pointer:
            call(lib.llama_k3_seq_checkpoints, pointer, self._seq(seq), ffi.NULL, ffi.NULL, 0, found)
            count = found[0]
            positions, ids = ffi.new("int64_t[]", count), ffi.new("uint64_t[]", count)
            call(lib.llama_k3_seq_checkpoints, pointer, seq, positions, ids, count, found)
        return [Checkpoint(positions[i], ids[i]) for i in range(count)]

    def drop_checkpoint(self, seq: int, pos: int) -> None:
        """Drop the sequence's checkpoint at `pos`; copies keep theirs. ArgumentError: none there."""
        with self._borrow() as pointer:
            position = integer("pos", pos, 0, 2**63 - 1)
            call(lib.llama_k3_seq_drop_checkpoint, pointer, self._seq(seq), position)

    def truncate(self, seq: int, pos: int) -> int:
        """Go back to `pos` tokens, or to the newest checkpoint before it: returns the position to go on from.

        A result below `pos` means that the tokens from there on have to be decoded again.
        """
        result, go_on = ffi.new("int32_t *"), ffi.new("int64_t *")
        with self._borrow() as pointer:
            position = integer("pos", pos, 0, lib.llama_k3_seq_position(pointer, self._seq(seq)))
            call(lib.llama_k3_seq_truncate, pointer, seq, position, result, go_on)
        return int(go_on[0])

    def copy(self, src: int, dst: int) -> None:
        """Make sequence `dst` a copy of `src`."""
        with self._borrow() as pointer:
            call(lib.llama_k3_seq_copy, pointer, self._seq(src, "src"), self._seq(dst, "dst"))

    def clear(self, seq: int = 0) -> None:
        """Drop all tokens of the sequence."""
        with self._borrow() as pointer:
            call(lib.llama_k3_seq_clear, pointer, self._seq(seq))

    def fill(self, n: int, seq: int = 0, seed: int = 0) -> None:
        """For measuring: make the sequence n random tokens with cache contents of usual size, at once."""
        with self._borrow() as pointer:
            count = integer("n", n, 0, self.params.n_ctx)
            call(lib.llama_k3_seq_fill, pointer, self._seq(seq), count, integer("seed", seed, 0, 2**64 - 1))

    def snapshot(self, seq: int = 0, checkpoints_from: int | None = None) -> Snapshot:
        """A whole copy of the sequence.

        `checkpoints_from`: its checkpoints at this position and behind come along. None: none do, and the
        present position is made one.
        """
        out = ffi.new("llama_k3_snapshot **")
        first = (
            -1 if checkpoints_from is None else integer("checkpoints_from", checkpoints_from, 0, 2**63 - 1)
        )
        with self._borrow() as pointer:
            call(lib.llama_k3_seq_snapshot, pointer, self._seq(seq), first, out)
        return Snapshot(out[0])

    def restore(self, seq: int, snapshot: Snapshot) -> None:
        """Make the sequence what it was when the snapshot was taken, and its position a checkpoint.

        StateError: the snapshot's bytes are damaged, or of another model or cache type; nothing is changed.
        """
        if not isinstance(snapshot, Snapshot):
            raise ArgumentError(f"snapshot: found {type(snapshot).__name__}, wanted a Snapshot")
        with self._borrow() as pointer, snapshot._borrow() as copy:
            call(lib.llama_k3_seq_restore, pointer, self._seq(seq), copy)

    def save(self, seq: int, path: str | os.PathLike[str]) -> None:
        """Write the sequence to a file, by way of a temporary name beside it."""
        with self._borrow() as pointer:
            call(lib.llama_k3_seq_save, pointer, self._seq(seq), path_bytes(path))

    def load(self, seq: int, path: str | os.PathLike[str]) -> None:
        """Read a sequence that `save` wrote; the file is checked whole before the sequence changes."""
        with self._borrow() as pointer:
            call(lib.llama_k3_seq_load, pointer, self._seq(seq), path_bytes(path))

    def memory(self) -> Memory:
        """Bytes by part as allocated and used now; Model.memory tells before a context is made."""
        out = ffi.new("llama_k3_memory *")
        with self._borrow() as pointer:
            call(lib.llama_k3_context_get_memory, pointer, out)
        return memory_of(out)

    def counters(self) -> Counters:
        """Work done since the context was made or `reset_counters` was called."""
        out = ffi.new("llama_k3_counters *")
        with self._borrow() as pointer:
            lib.llama_k3_context_get_counters(pointer, out)
        return Counters(
            _phase_of(out.prefill), _phase_of(out.decode), int(out.graphs_built), int(out.graphs_reused)
        )

    def reset_counters(self) -> None:
        with self._borrow() as pointer:
            lib.llama_k3_context_reset_counters(pointer)

    def _seq(self, seq: int, name: str = "seq") -> int:
        return integer(name, seq, 0, self.params.n_seq_max - 1)
