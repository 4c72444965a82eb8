"""What an engine is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True)
class EngineOptions:
    """Sizes are in tokens where nothing else is said.

    `n_ctx`: of each slot. `n_parallel`: slots. `n_ubatch`: tokens computed at once, shared by all
    slots. `cache_ram`: bytes for snapshots and parked sequences together, 0: none are kept.
    `cache_disk`: folder of the second tier, which holds at most `cache_disk_size` bytes.
    `snapshot_min_step`: least distance of two snapshots at message ends; the last user message's
    and the prompt's end are always kept. `snapshot_every`: distance of snapshots within long
    messages. `max_queue`: requests that may wait.
    """

    n_ctx: int = 4096
    n_parallel: int = 4
    n_ubatch: int = 512
    kv_type: str = "bf16"
    cache_ram: int = 8192 * MIB
    cache_disk: Path | None = None
    cache_disk_size: int = 0
    snapshot_min_step: int = 256
    snapshot_every: int = 8192
    max_queue: int = 512
