"""What a worker holds about its KV cache, read in bytes, not from the log's two decimals."""

from __future__ import annotations

import sys
from typing import Any, Final, Literal

from wstrace.recorder.vllm_state.config_limits import named

Sizing = Literal["gpu", "cpu", "other"]
# vLLM 0.13.0 to 0.33.0: the modules of determine_available_memory, which sizes the KV cache.
SIZINGS: Final[dict[str, Sizing]] = {
    "vllm.v1.worker.gpu_worker": "gpu",
    "vllm.v1.worker.cpu_worker": "cpu",
}
# vLLM 0.13.0 to 0.33.0: the numbers that fix the KV size, whatever is measured.
FIXED: Final = ("kv_cache_memory_bytes", "num_gpu_blocks_override")


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
    config = worker.vllm_config
    for name in FIXED:
        if named(config, name):
            return name
    # up to 0.18 the only way on a CPU
    on_cpu = getattr(config.cache_config, "cpu_kvcache_space_bytes", None)
    return "VLLM_CPU_KVCACHE_SPACE" if on_cpu else None


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


def snapshot_taken(worker: Any) -> bool:
    """Whether a GPU worker of 0.27 on has taken its first memory snapshot (init_device)."""
    return hasattr(worker, "init_snapshot")


def weights_bytes(worker: Any) -> int | None:
    """Bytes that load_model took, as the runner measured them; None where it did not."""
    weights = getattr(worker.model_runner, "model_memory_usage", None)
    return int(weights) if weights is not None else None


def block_size(worker: Any) -> int:
    """Tokens of a KV block, as resolved by now."""
    return int(named(worker.vllm_config, "block_size"))


def blocks_of(kv_cache_config: Any) -> tuple[int, int] | None:
    """(blocks, bytes of all of them) in the config given to the worker; None without blocks."""
    blocks = getattr(kv_cache_config, "num_blocks", None)
    tensors = getattr(kv_cache_config, "kv_cache_tensors", None)
    if not blocks or tensors is None:
        return None
    return int(blocks), sum(int(getattr(tensor, "size", 0)) for tensor in tensors)
