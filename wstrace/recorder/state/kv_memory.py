"""What KV sizing counted: read in the worker, in bytes, not from the log's two decimals.

A reservation's place decides whether KV sizing pays for it. Up to 0.26 a GPU worker measures
load_model (as weights) and profile_run; from 0.27 on all from the first memory snapshot in
init_device to the end of profile_run. The matrix holds this against vLLM's own arithmetic.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from wstrace.trace.records import Hook, Memory, Phase
from wstrace.versions import CHECKED_WITH, UNKNOWN, Release

Window = Literal["counted", "not counted", "unknown"]
Sizing = Literal["gpu", "cpu", "other"]
FROM_SNAPSHOT: Final = "0.27.0"  # GPUWorker.init_device keeps init_snapshot from here on
# vLLM 0.13.0 to 0.33.0: the modules of determine_available_memory, which sizes the KV cache.
SIZINGS: Final[dict[str, Sizing]] = {
    "vllm.v1.worker.gpu_worker": "gpu",
    "vllm.v1.worker.cpu_worker": "cpu",
}
# vLLM 0.13.0 to 0.33.0: settings of cache_config that fix the KV size, whatever is measured.
FIXED: Final = {
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "cpu_kvcache_space_bytes": "VLLM_CPU_KVCACHE_SPACE",  # up to 0.18 the only way on a CPU
}
# vLLM 0.13.0 to 0.33.0: the methods inside which KV sizing measures.
DECIDING: Final = (".load_model", ".profile_run", ".determine_available_memory")


@dataclass
class MemoryState:
    """What decides whether an arena is paid for.

    `fixed` names the setting that fixes the KV size, if one does. `sizing` is whose
    determine_available_memory the worker runs. `measured`: that has looked, so the KV size
    cannot change any more. `blind`: a hook that tells these phases apart stood down.
    """

    vllm: Release = UNKNOWN
    fixed: str | None = None
    sizing: Sizing = "gpu"
    measured: bool = False
    blind: bool = False

    def starts(self, worker: Any) -> None:
        """A worker starts: nothing is measured yet, and its class says how it will be."""
        self.sizing = sizing_of(type(worker))
        self.measured = False
        self.fixed = fixed_kv(worker)

    def profiling(self, worker: Any) -> None:
        """profile_run starts: a startup plan, applied before it, fixes the KV size."""
        self.fixed = fixed_kv(worker)

    def profiled(self) -> None:
        """profile_run returned: a GPU worker reads its counters now, a CPU worker later."""
        self.measured = self.measured or self.sizing == "gpu"

    def sized(self) -> None:
        """determine_available_memory returned."""
        self.measured = True

    def looked_at(self, hooks: Iterable[Hook]) -> None:
        """The hooks as they stand: without one of DECIDING the phases cannot be told apart."""
        if any(hook.name.endswith(DECIDING) for hook in hooks if not hook.set):
            self.blind = True

    def window(
        self, phase: Phase, *, snapshot: bool = True, in_estimate: bool = False
    ) -> Window:
        """Whether an arena made in `phase` is paid for in KV sizing.

        `snapshot`: init_device had taken its memory snapshot. `in_estimate`: graphs were
        being captured whose measured memory is subtracted; vLLM extrapolates it and takes
        the larger of two modes, so an arena in it may count whole, in part or not at all.
        """
        if self.fixed is not None:
            return "not counted"
        if in_estimate:
            return "unknown"
        if self.measured or phase not in ("init", "load", "profile"):
            return "not counted"
        if self.blind:
            return "unknown"
        if self.sizing != "gpu":  # a CPU worker counts the pages that were touched
            return "unknown"
        if phase != "init":
            return "counted"
        return "counted" if snapshot and self.vllm.has(FROM_SNAPSHOT) else "not counted"

    def measures(self) -> str:
        """What KV sizing looks at in this worker, in words."""
        if self.fixed is not None:
            return "nothing: the KV size is fixed"
        if self.sizing == "cpu":
            return "the pages that were touched"
        if self.sizing != "gpu":
            return "unknown"
        if not self.vllm.has(FROM_SNAPSHOT):
            return "load_model and profile_run"
        taken = f" (taken for {CHECKED_WITH})" if self.vllm.newer_than_checked else ""
        return f"from the first memory snapshot to the end of profile_run{taken}"


def estimate_applied() -> bool:
    """Whether this vLLM subtracts its estimate of graph memory (a flag; on from 0.20)."""
    envs = sys.modules.get("vllm.envs")
    return bool(getattr(envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False))


def sizing_of(worker: type) -> Sizing:
    """By the module of the method, hooked or not, or else of the class that has it."""
    name = "determine_available_memory"
    owner = next((kind for kind in worker.__mro__ if name in vars(kind)), worker)
    places = (getattr(vars(owner).get(name), "__module__", ""), owner.__module__)
    return next((SIZINGS[place] for place in places if place in SIZINGS), "other")


def fixed_kv(worker: Any) -> str | None:
    """The setting that fixes the KV cache's size and so hides a reserve from KV sizing."""
    cache = worker.vllm_config.cache_config
    return next((shown for name, shown in FIXED.items() if getattr(cache, name, None)), None)


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


def kv_record(worker: Any, available: Any, measures: str) -> Memory:
    """The record written when determine_available_memory returned `available` bytes."""
    free = free_memory(worker)
    weights = getattr(worker.model_runner, "model_memory_usage", None)
    return Memory(
        available_kv_bytes=int(available) if isinstance(available, int) else None,
        fixed_kv=fixed_kv(worker),
        weights_bytes=int(weights) if weights is not None else None,
        free_bytes=free[0] if free else None,
        total_bytes=free[1] if free else None,
        window=measures,
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
