"""Where vLLM has the fields that wstrace/recorder/vllm_state reads from its live objects.

A row: the reader's module, the file and class (or function) of vLLM that has the names, the
first and the last release that does. A name that moved has a row for each place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FIRST, LAST = "0.13.0", "99"
V1 = "v1/worker"
MOE = "model_executor/layers/fused_moe"
Names = dict[str, set[str]]
"""What each class and function of a file defines; "" is the file itself."""


@dataclass(frozen=True)
class Field:
    """`names` that `reader` reads, which stand in `place` (FILE:CLASS, FILE:CLASS.FUNCTION or
    FILE:) below vllm/."""

    reader: str
    place: str
    names: str
    since: str = FIRST
    until: str = LAST

    def missing(self, root: Path) -> list[str]:
        """The names that the vllm package at `root` does not have there."""
        file, _, owner = self.place.partition(":")
        found = defined(root / file).get(owner, set())
        return [name for name in self.names.split() if name not in found]


FIELDS = (
    Field("workspace", f"{V1}/workspace.py:", "_manager"),
    Field("workspace", f"{V1}/workspace.py:", "_workspace_lane", "0.28.0"),
    Field(
        "workspace",
        f"{V1}/workspace.py:WorkspaceManager",
        "_current_workspaces _device _locked _num_ubatches",
    ),
    Field("workspace", f"{V1}/workspace.py:WorkspaceManager", "_num_lanes", "0.28.0"),
    Field(
        "workspace",
        f"{V1}/workspace.py:WorkspaceManager",
        "_get_workspace_id _persistent_resources",
        "0.31.0",
    ),
    Field("workspace", f"{V1}/workspace.py:WorkspaceManager", "_alloc_context", "0.32.0"),
    Field("workspace", f"{V1}/ubatching.py:", "_THREAD_ID_TO_CONTEXT dbo_current_ubatch_id"),
    Field(
        "workspace",
        f"{MOE}/moe_permute_unpermute.py:MoEPermuteScratch",
        "max_expanded_rows",
        "0.24.0",
    ),
    Field(
        "scheduler_output",
        "v1/core/sched/output.py:SchedulerOutput",
        "total_num_scheduled_tokens num_scheduled_tokens scheduled_new_reqs"
        " scheduled_cached_reqs scheduled_spec_decode_tokens",
    ),
    Field(
        "scheduler_output",
        "v1/core/sched/output.py:NewRequestData",
        "req_id num_computed_tokens",
    ),
    Field(
        "scheduler_output",
        "v1/core/sched/output.py:CachedRequestData",
        "req_ids num_computed_tokens",
    ),
    Field("forward_context", "forward_context.py:", "_forward_context"),
    Field("forward_context", "forward_context.py:ForwardContext", "cudagraph_runtime_mode"),
    Field("kv_cache", f"{V1}/gpu_worker.py:Worker", "determine_available_memory init_snapshot"),
    Field("kv_cache", f"{V1}/cpu_worker.py:CPUWorker", "determine_available_memory"),
    Field(
        "kv_cache",
        f"{V1}/worker_base.py:WorkerBase",
        "vllm_config device model_runner cache_config",
    ),
    Field("kv_cache", f"{V1}/gpu_model_runner.py:GPUModelRunner", "model_memory_usage"),
    Field("kv_cache", f"{V1}/gpu/model_runner.py:GPUModelRunner", "model_memory_usage"),
    Field("kv_cache", "v1/kv_cache_interface.py:KVCacheConfig", "num_blocks kv_cache_tensors"),
    Field("kv_cache", "v1/kv_cache_interface.py:KVCacheTensor", "size"),
    Field("kv_cache", "config/vllm.py:VllmConfig", "cache_config"),
    Field("kv_cache", "config/cache.py:CacheConfig", "cpu_kvcache_space_bytes", until="0.18.1"),
    Field("kv_cache", "envs.py:", "VLLM_CPU_KVCACHE_SPACE"),
    Field("kv_cache", "envs.py:", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "0.18.1"),
    Field("experts", f"{V1}/worker_base.py:WorkerBase", "model_runner"),
    Field("experts", f"{V1}/gpu_model_runner.py:GPUModelRunner", "model"),
    Field("experts", f"{V1}/gpu/model_runner.py:GPUModelRunner", "model"),
    Field(
        "experts",
        f"{MOE}/config.py:FusedMoEConfig",
        "hidden_dim num_local_experts max_num_tokens",
    ),
    Field(
        "experts",
        f"{MOE}/config.py:FusedMoEConfig",
        "intermediate_size_per_partition",
        "0.16.0",
    ),
    Field("experts", f"{MOE}/layer.py:FusedMoE", "moe_config quant_method", until="0.20.2"),
    Field(
        "experts", f"{MOE}/routed_experts.py:RoutedExperts", "moe_config quant_method", "0.24.0"
    ),
    Field(
        "experts", f"{MOE}/fused_moe_method_base.py:FusedMoEMethodBase", "moe_kernel", "0.18.1"
    ),
    Field("experts", f"{MOE}/modular_kernel.py:FusedMoEKernel", "impl", "0.18.1"),
    Field(
        "experts",
        f"{MOE}/modular_kernel.py:FusedMoEKernelModularImpl",
        "fused_experts",
        "0.18.1",
    ),
    Field("experts", f"{MOE}/modular_kernel.py:FusedMoEExperts", "num_dispatchers", "0.18.1"),
    Field(
        "identity",
        f"{MOE}/modular_kernel.py:FusedMoEModularKernel",
        "fused_experts prepare_finalize",
        until="0.16.0",
    ),
    Field(
        "identity",
        f"{MOE}/modular_kernel.py:FusedMoEKernelModularImpl",
        "fused_experts prepare_finalize",
        "0.18.1",
    ),
    Field(
        "identity",
        f"{MOE}/modular_kernel.py:FusedMoEPermuteExpertsUnpermute",
        "workspace_shapes quant_config",
        until="0.16.0",
    ),
    Field(
        "identity",
        f"{MOE}/modular_kernel.py:FusedMoEExpertsModular",
        "workspace_shapes",
        "0.18.1",
    ),
    Field("identity", f"{MOE}/modular_kernel.py:FusedMoEExperts", "quant_config", "0.18.1"),
    Field("identity", f"{MOE}/layer.py:FusedMoE", "quant_method", until="0.20.2"),
    Field("identity", f"{MOE}/routed_experts.py:RoutedExperts", "quant_method", "0.24.0"),
    Field(
        "identity",
        f"{MOE}/fused_humming_moe.py:HummingExpertsBase",
        "make_workspaces",
        "0.20.2",
        "0.20.2",
    ),
    Field(
        "identity",
        f"{MOE}/experts/fused_humming_moe.py:HummingExpertsBase",
        "make_workspaces",
        "0.24.0",
    ),
    Field(
        "frames",
        f"{V1}/workspace.py:WorkspaceManager.get_simultaneous",
        "shapes_and_dtypes",
    ),
    Field("frames", f"{V1}/workspace.py:WorkspaceManager", "get_simultaneous"),
    Field("frames", "attention/layer.py:Attention", "layer_name", until="0.13.0"),
    Field(
        "frames",
        "model_executor/layers/attention/attention.py:Attention",
        "layer_name",
        "0.16.0",
    ),
    Field(
        "frames",
        "model_executor/layers/sparse_attn_indexer.py:sparse_attn_indexer",
        "k_cache_prefix",
        "0.16.0",
    ),
    Field("frames", "model_executor/layers/linear.py:LinearBase.__init__", "prefix"),
    Field(
        "frames",
        "attention/backends/abstract.py:AttentionImpl.forward",
        "layer",
        until="0.13.0",
    ),
    Field("frames", "v1/attention/backend.py:AttentionImpl.forward", "layer", "0.16.0"),
    Field("config_limits", f"{V1}/worker_base.py:WorkerBase", "vllm_config rank model_runner"),
    Field(
        "config_limits",
        f"{V1}/gpu_model_runner.py:GPUModelRunner",
        "max_encoder_len attn_groups",
    ),
    Field("config_limits", f"{V1}/gpu/model_runner.py:GPUModelRunner", "attn_groups"),
    Field("config_limits", f"{V1}/utils.py:AttentionGroup", "metadata_builders"),
    Field(
        "config_limits",
        "v1/attention/backends/utils.py:AttentionMetadataBuilder",
        "reorder_batch_threshold kv_cache_spec",
        until="0.13.0",
    ),
    Field(
        "config_limits",
        "v1/attention/backend.py:AttentionMetadataBuilder",
        "reorder_batch_threshold kv_cache_spec",
        "0.16.0",
    ),
    Field("config_limits", "v1/kv_cache_interface.py:KVCacheSpec", "block_size"),
    Field(
        "config_limits",
        "distributed/parallel_state.py:",
        "get_tp_group get_pp_group get_ep_group get_dcp_group get_pcp_group",
    ),
    Field("config_limits", "distributed/parallel_state.py:GroupCoordinator", "rank_in_group"),
    Field(
        "config_limits",
        "config/parallel.py:ParallelConfig",
        "data_parallel_rank node_rank nnodes world_size use_sequence_parallel_moe",
    ),
    Field(
        "config_limits", "config/parallel.py:ParallelConfig", "data_parallel_index", "0.16.0"
    ),
    Field("config_limits", "config/vllm.py:VllmConfig", "model_config parallel_config"),
    Field(
        "config_limits",
        "config/model.py:ModelConfig",
        "hf_text_config model get_num_attention_heads get_num_kv_heads get_head_size",
    ),
)


@cache
def defined(file: Path) -> Names:
    """What each class and function of a file defines: its attributes and methods, `self.NAME`
    in its methods, arguments and local names; nothing where the file is not there."""
    found: Names = {}
    if file.is_file():
        _define(ast.parse(file.read_text()).body, "", found)
    return found


def _define(body: list[ast.stmt], owner: str, found: Names) -> None:
    mine = found.setdefault(owner, set())
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            mine.add(node.name)
        if isinstance(node, ast.ClassDef):
            _define(node.body, node.name, found)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            whole = f"{owner}.{node.name}".strip(".")
            local, own = _of_function(node)
            found.setdefault(whole, set()).update(local)
            mine |= own
        elif isinstance(node, ast.If | ast.Try):
            _define([*node.body, *node.orelse], owner, found)
        else:
            mine |= {name.id for name in _assigned(node) if isinstance(name, ast.Name)}


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[set[str], set[str]]:
    """Its arguments and local names, and the attributes of `self` that it makes."""
    args = node.args
    given = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg]
    local = {argument.arg for argument in given if argument}
    own = set()
    for name in _assigned(node):
        if isinstance(name, ast.Name):
            local.add(name.id)
        elif isinstance(name.value, ast.Name) and name.value.id == "self":
            own.add(name.attr)
    return local, own


def _assigned(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """Names and attributes that are assigned or declared in a node."""
    for inner in ast.walk(node):
        declared = isinstance(inner, ast.AnnAssign) and inner.target
        if isinstance(inner, ast.Name | ast.Attribute) and (
            isinstance(inner.ctx, ast.Store) or inner is declared
        ):
            yield inner
