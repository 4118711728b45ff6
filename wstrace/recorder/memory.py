"""What KV sizing counted: read in the worker, in bytes, not from the log's two decimals.

Rules by version (a reservation's place decides whether KV sizing pays for it):
up to 0.26 the measured window is load_model (as weights) and profile_run; from 0.28 on
everything from the first memory snapshot in init_device to the end of profile_run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wstrace.trace.records import Memory, Phase

Window = Literal["counted", "not counted", "unknown"]
Version = tuple[int, int]
FROM_SNAPSHOT: Version = (0, 28)


def version_pair(text: str | None) -> Version | None:
    """(0, 28) of "0.28.0+cu130"; None for a development build without numbers."""
    parts = (text or "").split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])


@dataclass
class MemoryState:
    """`fixed` names the flag that fixes the KV size, if one does."""

    vllm: Version | None = None
    fixed: str | None = None

    def window(self, phase: Phase) -> Window:
        """Whether an arena made in `phase` is paid for in KV sizing."""
        if self.fixed is not None:
            return "not counted"
        if self.vllm is None:
            return "unknown"
        if phase in ("load", "profile"):
            return "counted"
        if phase == "init":
            return "counted" if self.vllm >= FROM_SNAPSHOT else "not counted"
        return "not counted"


def fixed_kv(worker: Any) -> str | None:
    """The setting that fixes the KV cache's size and so hides a reserve from KV sizing."""
    cache = worker.vllm_config.cache_config
    for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override"):
        if getattr(cache, name, None):
            return name
    return None


def free_memory(worker: Any) -> tuple[int, int] | None:
    """(free, total) bytes on the worker's device; host memory on the CPU platform."""
    import torch

    device = getattr(worker, "device", None)
    if getattr(device, "type", "") == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    try:
        import psutil

        memory = psutil.virtual_memory()
    except (ImportError, OSError):
        return None
    return int(memory.available), int(memory.total)


def kv_record(worker: Any, available: Any) -> Memory:
    """The record written when determine_available_memory returned `available` bytes."""
    free = free_memory(worker)
    weights = getattr(worker.model_runner, "model_memory_usage", None)
    return Memory(
        available_kv_bytes=int(available) if isinstance(available, int) else None,
        fixed_kv=fixed_kv(worker),
        weights_bytes=int(weights) if weights is not None else None,
        free_bytes=free[0] if free else None,
        total_bytes=free[1] if free else None,
    )


def blocks_record(worker: Any, kv_cache_config: Any) -> Memory | None:
    """Blocks of the KV cache and bytes a block, from the config given to the worker."""
    blocks = getattr(kv_cache_config, "num_blocks", None)
    tensors = getattr(kv_cache_config, "kv_cache_tensors", None)
    if not blocks or tensors is None:
        return None
    total = sum(int(getattr(tensor, "size", 0)) for tensor in tensors)
    return Memory(
        num_gpu_blocks=int(blocks),
        block_size=int(worker.vllm_config.cache_config.block_size),
        bytes_per_block=total // int(blocks) or None,
        fixed_kv=fixed_kv(worker),
    )
