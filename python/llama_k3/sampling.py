"""Sampler: draws the next token from a row of logits."""

from __future__ import annotations

import secrets
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from ._lib import Handle, call, ffi, lib
from .errors import ArgumentError


class Sampler(Handle):
    """Top-k, top-p, min-p, then temperature, then a seeded draw; a context manager. Threads take turns.

    temperature 0: the largest logit, ties to the lower id. top_k <= 0, top_p >= 1, min_p 0: no such filter.
    """

    def __init__(
        self,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        seed: int | None = None,
    ) -> None:
        """`seed` in 0 .. 2^64 - 1; None draws one, which `seed` then tells."""
        self.seed = secrets.randbits(64) if seed is None else seed
        params = ffi.new("llama_k3_sampler_params *")
        try:
            params.temperature, params.top_p, params.min_p = temperature, top_p, min_p
            params.top_k, params.seed = top_k, self.seed
        except (OverflowError, TypeError) as error:
            raise ArgumentError(
                f"sampler: found temperature={temperature!r}, top_k={top_k!r}, top_p={top_p!r}, "
                f"min_p={min_p!r}, seed={seed!r}, wanted numbers, top_k in 32 bits, seed in 0 .. 2^64 - 1"
            ) from error
        out = ffi.new("llama_k3_sampler **")
        call(lib.llama_k3_sampler_new, params, out)
        super().__init__("sampler", out[0], lib.llama_k3_sampler_free)
        self._turn = threading.Lock()

    def sample(self, logits: npt.NDArray[Any]) -> int:
        """A token id drawn from logits [n_vocab]."""
        row = np.ascontiguousarray(logits, np.float32)
        if row.ndim != 1 or not row.size:
            raise ArgumentError(f"logits: found shape {row.shape}, wanted one row [n_vocab]")
        token = ffi.new("int32_t *")
        with self._turn, self._borrow() as pointer:
            call(lib.llama_k3_sampler_sample, pointer, ffi.from_buffer("float[]", row), row.size, token)
        return int(token[0])
