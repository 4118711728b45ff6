"""The records of what KV sizing measured and made."""

from __future__ import annotations

from typing import Any

from wstrace.recorder.vllm_state.kv_cache import (
    block_size,
    blocks_of,
    fixed_kv,
    free_memory,
    weights_bytes,
)
from wstrace.trace.records import Memory


def kv_record(worker: Any, available: Any, measures: str) -> Memory:
    """The record written when determine_available_memory returned `available` bytes."""
    free = free_memory(worker)
    return Memory(
        available_kv_bytes=int(available) if isinstance(available, int) else None,
        fixed_kv=fixed_kv(worker),
        weights_bytes=weights_bytes(worker),
        free_bytes=free[0] if free else None,
        total_bytes=free[1] if free else None,
        window=measures,
    )


def blocks_record(worker: Any, kv_cache_config: Any) -> Memory | None:
    """Blocks of the KV cache and bytes a block, from the config given to the worker."""
    found = blocks_of(kv_cache_config)
    if found is None:
        return None
    blocks, total = found
    return Memory(
        num_gpu_blocks=blocks,
        block_size=block_size(worker),
        bytes_per_block=total // blocks or None,
        fixed_kv=fixed_kv(worker),
    )
