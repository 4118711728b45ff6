"""What KV sizing did, read in the worker by vLLM's own means, independent of wstrace.

tools.gpu.extension adds the method to the worker, and `POST /collective_rpc`
(VLLM_SERVER_DEV_MODE=1) calls it.
"""

from __future__ import annotations

from typing import Any, Final

NUMBERS: Final = {
    "available_kv_bytes": "available_kv_cache_memory_bytes",
    "requested_bytes": "requested_memory",
    "activation_bytes": "peak_activation_memory",
    "non_torch_bytes": "non_torch_memory",
    "graph_estimate_bytes": "cudagraph_memory_estimate",
}


class MemoryWitness:
    """Mixed into vLLM's worker class."""

    def witness_memory(self: Any) -> dict[str, int]:
        """The numbers of determine_available_memory in bytes; those that this worker has."""
        found = {
            name: int(value)
            for name, field in NUMBERS.items()
            if isinstance(value := getattr(self, field, None), int | float)
        }
        weights = getattr(self.model_runner, "model_memory_usage", None)
        if isinstance(weights, int | float):
            found["weights_bytes"] = int(weights)
        return found
