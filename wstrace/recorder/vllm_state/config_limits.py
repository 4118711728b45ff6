"""The config's limits, as the names that bounds and reserve formulas use.

Read from `worker.vllm_config` after init_device; values that vLLM resolves later
(max_model_len auto-fit, graph sizes, block size) are read again before they are needed.
A value that this vLLM does not have is absent, never 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from wstrace.trace.records import Limit, Ranks

_MISSING = object()

PATHS: dict[str, str] = {
    "max_model_len": "model_config.max_model_len",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "block_size": "cache_config.block_size",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "decode_context_parallel_size": "parallel_config.decode_context_parallel_size",
    "prefill_context_parallel_size": "parallel_config.prefill_context_parallel_size",
    "cp_kv_cache_interleave_size": "parallel_config.cp_kv_cache_interleave_size",
    "enable_expert_parallel": "parallel_config.enable_expert_parallel",
    "all2all_backend": "parallel_config.all2all_backend",
    "enable_dbo": "parallel_config.enable_dbo",
    "num_speculative_tokens": "speculative_config.num_speculative_tokens",
    "parallel_drafting": "speculative_config.parallel_drafting",
    "num_redundant_experts": "parallel_config.eplb_config.num_redundant_experts",
    "max_cudagraph_capture_size": "compilation_config.max_cudagraph_capture_size",
    "cudagraph_capture_sizes": "compilation_config.cudagraph_capture_sizes",
    "cudagraph_mode": "compilation_config.cudagraph_mode",
    "enforce_eager": "model_config.enforce_eager",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "async_scheduling": "scheduler_config.async_scheduling",
    "dtype": "model_config.dtype",
    "cache_dtype": "cache_config.cache_dtype",
    "kv_cache_memory_bytes": "cache_config.kv_cache_memory_bytes",
    "num_gpu_blocks_override": "cache_config.num_gpu_blocks_override",
    "sparse_mla_prefill_workspace_factor": (
        "attention_config.sparse_mla_prefill_workspace_factor"
    ),
    "tq_max_kv_splits": "attention_config.tq_max_kv_splits_for_cuda_graph",
}
TEXT_PATHS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("intermediate_size",),
    "num_layers": ("num_hidden_layers",),
    "num_experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok", "moe_topk"),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "kv_lora_rank": ("kv_lora_rank",),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "index_head_dim": ("index_head_dim",),
    "index_n_heads": ("index_n_heads",),
    "index_topk": ("index_topk",),
    "sliding_window": ("sliding_window",),
}
ENVIRONMENT: dict[str, str] = {
    "flashinfer_workspace_bytes": "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE",
    "sparse_indexer_max_logits_mb": "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
    "fused_moe_chunk_size": "VLLM_FUSED_MOE_CHUNK_SIZE",
}


def _walk(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, _MISSING)
        if root is _MISSING or root is None:
            return None
    return root


def plain(value: Any) -> Limit:
    """An integer, flag, list of integers or short name; None for anything else."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple) and all(isinstance(v, int) for v in value):
        return list(value)
    name = getattr(value, "name", None) or (value if isinstance(value, str) else str(value))
    return name.removeprefix("torch.")[:80] if isinstance(name, str) else None


def read_limits(vllm_config: Any) -> dict[str, Limit]:
    """All limits that this config has. Head counts are per tensor-parallel rank."""
    limits = {
        name: plain(_walk(vllm_config, path))
        for name, path in PATHS.items()
        if _walk(vllm_config, path) is not None
    }
    limits.update(_text_limits(vllm_config))
    limits.update(_head_limits(vllm_config))
    limits.update(_environment_limits())
    limits.update(_device_limits(vllm_config))
    limits["model"] = os.path.basename(str(_walk(vllm_config, "model_config.model") or ""))
    return limits


def runner_limits(worker: Any) -> dict[str, Limit]:
    """What only the runner's metadata builders know, once they are made.

    The largest `reorder_batch_threshold` of them: tokens of a request that still decodes.
    """
    groups = _walk(worker, "model_runner.attn_groups") or ()
    found = [
        builder.reorder_batch_threshold
        for several in groups
        for group in several
        for builder in group.metadata_builders
    ]
    thresholds = [t for t in found if isinstance(t, int)]
    return {"reorder_batch_threshold": max(thresholds)} if thresholds else {}


def _text_limits(vllm_config: Any) -> dict[str, Limit]:
    text = _walk(vllm_config, "model_config.hf_text_config")
    found: dict[str, Limit] = {}
    for name, keys in TEXT_PATHS.items():
        value = next((v for k in keys if isinstance(v := getattr(text, k, None), int)), None)
        if value is not None:
            found[name] = value
    experts_split = _walk(vllm_config, "parallel_config.enable_expert_parallel")
    tp = _walk(vllm_config, "parallel_config.tensor_parallel_size") or 1
    if isinstance(found.get("moe_intermediate_size"), int) and not experts_split:
        found["moe_intermediate_size"] = int(found["moe_intermediate_size"]) // tp  # type: ignore[arg-type]
    return found


def _head_limits(vllm_config: Any) -> dict[str, Limit]:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    calls: dict[str, Callable[[], Any]] = {
        "num_attention_heads": lambda: model.get_num_attention_heads(parallel),
        "num_kv_heads": lambda: model.get_num_kv_heads(parallel),
        "head_size": lambda: model.get_head_size(),
    }
    found: dict[str, Limit] = {}
    for name, call in calls.items():
        try:
            found[name] = int(call())
        except Exception:  # a model without such heads has no such limit
            continue
    return found


def _device_limits(vllm_config: Any) -> dict[str, Limit]:
    """Bytes of the model's dtype, and multiprocessors where a CUDA device is in use."""
    found: dict[str, Limit] = {}
    size = getattr(_walk(vllm_config, "model_config.dtype"), "itemsize", None)
    if isinstance(size, int):
        found["dtype_size"] = size
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
        found["num_sms"] = int(torch.cuda.get_device_properties(device).multi_processor_count)
    return found


def _environment_limits() -> dict[str, Limit]:
    try:
        import vllm.envs as envs
    except ImportError:
        return {}
    found: dict[str, Limit] = {}
    for name, variable in ENVIRONMENT.items():
        value = getattr(envs, variable, None)
        if isinstance(value, int):
            found[name] = value
    return found


def read_ranks(worker: Any) -> tuple[Ranks, Ranks]:
    """(this worker's ranks, the group sizes), after init_device."""
    parallel = worker.vllm_config.parallel_config
    import vllm.distributed.parallel_state as groups

    def rank(getter: str) -> int | None:
        try:
            return int(getattr(groups, getter)().rank_in_group)
        except (AttributeError, AssertionError):
            return None

    expert = bool(getattr(parallel, "enable_expert_parallel", False))
    dcp = getattr(parallel, "decode_context_parallel_size", 1)
    ranks = Ranks(
        dp=getattr(parallel, "data_parallel_index", None)
        or getattr(parallel, "data_parallel_rank", 0),
        tp=rank("get_tp_group"),
        pp=rank("get_pp_group"),
        ep=rank("get_ep_group") if expert else None,
        dcp=rank("get_dcp_group") if dcp > 1 else None,
        rank=getattr(worker, "rank", None),
        node=getattr(parallel, "node_rank", None),
    )
    world = Ranks(
        dp=parallel.data_parallel_size,
        tp=parallel.tensor_parallel_size,
        pp=parallel.pipeline_parallel_size,
        ep=None,
        dcp=dcp,
        rank=getattr(parallel, "world_size", None),
        node=getattr(parallel, "nnodes", None),
    )
    return ranks, world
