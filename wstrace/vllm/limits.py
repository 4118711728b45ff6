"""The numbers and settings of a vLLM engine: one row each, with every place it stands in.

All that reads, shows or asks for such a number derives from these rows: the recorder (the
config object, the environment), a model's config.json, logs and command lines, `--set`, the
reserve config, the rules of known sites. A new number is one row and its line in
docs/known-sites.md (scripts/make-docs); tests/unit/vllm/test_limits.py says what a
row forgot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from wstrace.vllm.model_numbers import LAYERS, MODEL
from wstrace.vllm.number import DP, PCP, TP, Number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wstrace.vllm.number import Kind


def _rows() -> Iterator[tuple[str, Number]]:
    """In the order in which a reserve config lists them: the layout first."""
    yield from MODEL.items()
    yield from _PARALLEL.items()
    yield from LAYERS.items()
    yield from _SERVING.items()
    yield from _GRAPHS_AND_CACHE.items()
    yield from _KERNELS.items()
    yield from _TOLD.items()


_PARALLEL: Final = {
    TP: Number(
        meaning="ranks of a tensor-parallel group",
        use="layout",
        config=("parallel_config.tensor_parallel_size",),
        flag="--tensor-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    "pipeline_parallel_size": Number(
        meaning="pipeline stages",
        use="layout",
        config=("parallel_config.pipeline_parallel_size",),
        flag="--pipeline-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    DP: Number(
        meaning="data-parallel ranks",
        use="live",
        config=("parallel_config.data_parallel_size",),
        flag="--data-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    "decode_context_parallel_size": Number(
        meaning="ranks that share one sequence's KV in decode",
        use="layout",
        config=("parallel_config.decode_context_parallel_size",),
        flag="--decode-context-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    PCP: Number(
        meaning="ranks that share one sequence's prefill",
        use="layout",
        config=("parallel_config.prefill_context_parallel_size",),
        flag="--prefill-context-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    "expert_parallel_size": Number(
        meaning="ranks that share the experts: TP * DP * PCP with --enable-expert-parallel",
        use="layout",
        flag="--enable-expert-parallel",
        default=1,
        why="no expert parallelism",
    ),
    "enable_expert_parallel": Number(
        meaning="whether ranks hold whole experts",
        kind="switch",
        use="layout",
        config=("parallel_config.enable_expert_parallel",),
        flag="--enable-expert-parallel",
    ),
    "all2all_backend": Number(
        meaning="how tokens reach the ranks of their experts",
        kind="word",
        use="layout",
        config=("parallel_config.all2all_backend",),
        flag="--all2all-backend",
    ),
    "unread_dispatch": Number(
        meaning="1 where tokens reach the experts by a way that no rule's rows were read for",
        kind="switch",
        default=0,
        why="an all-gather, DeepEP high throughput or FlashInfer two-sided",
    ),
    "sequence_parallel_size": Number(
        meaning="TP ranks that split a step's tokens before the experts (sequence-parallel"
        " MoE)",
        use="live",
        default=1,
        why="sequence-parallel MoE is off",
    ),
    "num_redundant_experts": Number(
        meaning="copies of experts that the expert load balancer adds, all ranks",
        kind="count",
        use="live",
        config=("parallel_config.eplb_config.num_redundant_experts",),
        flag="--eplb-config num_redundant_experts",
        default=0,
        why="vLLM's default",
    ),
    "enable_dbo": Number(
        meaning="whether a step is cut into two micro-batches",
        kind="switch",
        use="live",
        config=("parallel_config.enable_dbo",),
        flag="--enable-dbo",
    ),
}
_SERVING: Final = {
    "max_model_len": Number(
        meaning="longest sequence a request may have, in tokens",
        use="live",
        config=("model_config.max_model_len",),
        flag="--max-model-len",
        logged=("max_model_len", "max_seq_len"),
        coded=("max_seq_len",),
    ),
    "max_num_batched_tokens": Number(
        meaning="tokens one step may schedule",
        use="live",
        config=("scheduler_config.max_num_batched_tokens",),
        flag="--max-num-batched-tokens",
        coded=("max_num_tokens",),
    ),
    "max_num_seqs": Number(
        meaning="requests one step may hold",
        use="live",
        config=("scheduler_config.max_num_seqs",),
        flag="--max-num-seqs",
        coded=("max_num_reqs",),
    ),
    "num_speculative_tokens": Number(
        meaning="draft tokens a step verifies for each request",
        kind="count",
        use="live",
        config=("speculative_config.num_speculative_tokens",),
        flag="--speculative-config num_speculative_tokens",
        logged=("num_speculative_tokens", "num_spec_tokens"),
        coded=("num_spec_tokens",),
        default=0,
        why="no speculative decoding",
    ),
    "parallel_drafting": Number(
        meaning="1 where the draft model proposes all its tokens in one pass (V1 runner)",
        kind="switch",
        use="live",
        config=("speculative_config.parallel_drafting",),
        flag="--speculative-config parallel_drafting",
        default=0,
        why="vLLM's default",
        since="0.16.0",
    ),
    "reorder_batch_threshold": Number(
        meaning="most tokens of a request that the attention backend still decodes",
        use="live",
        late=True,
        default=1,
        why="no short prefills among the decodes",
    ),
    "enable_chunked_prefill": Number(
        meaning="whether a long prompt is cut into steps",
        kind="switch",
        use="live",
        config=("scheduler_config.enable_chunked_prefill",),
        flag="--enable-chunked-prefill",
    ),
    "enable_prefix_caching": Number(
        meaning="whether KV of equal prefixes is used again",
        kind="switch",
        use="live",
        config=("cache_config.enable_prefix_caching",),
        flag="--enable-prefix-caching",
    ),
    "async_scheduling": Number(
        meaning="whether a step is scheduled while the last one runs",
        kind="switch",
        use="live",
        config=("scheduler_config.async_scheduling",),
        flag="--async-scheduling",
    ),
}
_GRAPHS_AND_CACHE: Final = {
    "block_size": Number(
        meaning="tokens a KV block of this layer holds (hybrid models enlarge it: see the"
        " start-up log)",
        use="live",
        config=("cache_config.block_size",),
        flag="--block-size",
        coded=("kv_block_size",),
    ),
    "kernel_block_size": Number(
        meaning="tokens of a block as the attention kernels see it, the smallest of all layers:"
        " a KV block may be split into several",
        use="live",
        late=True,
    ),
    "max_cudagraph_capture_size": Number(
        meaning="largest token count that a graph is captured for",
        kind="count",
        use="live",
        config=("compilation_config.max_cudagraph_capture_size",),
        flag="--max-cudagraph-capture-size",
    ),
    "mixed_graph_tokens": Number(
        meaning="most tokens that a full graph of a mixed step counts where all requests"
        " decode, padding included",
        kind="count",
        use="live",
        default=0,
        why="no full graph of a mixed step",
    ),
    "widest_mixed_graph": Number(
        meaning="most tokens of a full graph that takes mixed steps",
        kind="count",
        use="live",
        default="mixed_graph_tokens",
        why="no full graph of a mixed step",
    ),
    "cudagraph_capture_sizes": Number(
        meaning="token counts that graphs are captured for",
        kind="sizes",
        use="live",
        config=("compilation_config.cudagraph_capture_sizes",),
    ),
    "cudagraph_mode": Number(
        meaning="which steps run as graphs",
        kind="word",
        use="live",
        config=("compilation_config.cudagraph_mode",),
    ),
    "enforce_eager": Number(
        meaning="whether no graphs are captured",
        kind="switch",
        use="live",
        config=("model_config.enforce_eager",),
        flag="--enforce-eager",
    ),
    "kv_cache_memory_bytes": Number(
        meaning="the KV cache's bytes, where they are fixed by hand",
        kind="count",
        use="live",
        config=("cache_config.kv_cache_memory_bytes",),
        flag="--kv-cache-memory-bytes",
    ),
    "num_gpu_blocks_override": Number(
        meaning="the KV cache's blocks, where they are fixed by hand",
        kind="count",
        use="live",
        config=("cache_config.num_gpu_blocks_override",),
        flag="--num-gpu-blocks-override",
    ),
}
_KERNELS: Final = {
    "num_sms": Number(
        meaning="streaming multiprocessors (compute units on ROCm) of the device", use="live"
    ),
    "tq_max_kv_splits": Number(
        meaning="KV splits of the TurboQuant decode kernel",
        use="live",
        config=("attention_config.tq_max_kv_splits_for_cuda_graph",),
        flag="--attention-config tq_max_kv_splits_for_cuda_graph",
        logged=("tq_max_kv_splits_for_cuda_graph",),
        default=32,
        why="vLLM's default",
        since="0.20.2",
    ),
    "sparse_mla_prefill_workspace_factor": Number(
        meaning="sparse MLA prefill workspace in multiples of max_model_len",
        use="live",
        config=("attention_config.sparse_mla_prefill_workspace_factor",),
        flag="--attention-config sparse_mla_prefill_workspace_factor",
        default="2 + 3 * (1 - min(1, max_model_len // 262145))",
        why="vLLM takes 5 up to 262144 tokens and 2 above",
        since="0.32.0",
    ),
    "flashinfer_workspace_bytes": Number(
        meaning="FlashInfer's scratch",
        use="live",
        env="VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE",
        default=413138944,
        why="394 MiB, vLLM's default",
    ),
    "sparse_indexer_max_logits_mb": Number(
        meaning="most MiB of logits that the sparse indexer makes at once",
        use="live",
        env="VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
        since="0.20.2",
    ),
    "fused_moe_chunk_size": Number(
        meaning="tokens that the fused MoE takes at once",
        use="live",
        env="VLLM_FUSED_MOE_CHUNK_SIZE",
        until="0.18.1",
    ),
}
_TOLD: Final = {
    "dcp_comm_backend": Number(
        meaning="how DCP ranks exchange partial results",
        kind="word",
        use="told",
        logged=("dcp_comm_backend",),
    ),
    "quantization": Number(
        meaning="the weights' quantisation", kind="word", use="told", logged=("quantization",)
    ),
    "moe_backend": Number(
        meaning="which kernels run the experts",
        kind="word",
        use="told",
        logged=("moe_backend",),
    ),
    "enable_sleep_mode": Number(
        meaning="whether the engine may give its memory back",
        kind="switch",
        use="told",
        logged=("enable_sleep_mode",),
    ),
}

NUMBERS: Final = {name: msgspec.structs.replace(row, name=name) for name, row in _rows()}
"""Every row by its name."""
LAYOUT_NAMES: Final = tuple(n.name for n in NUMBERS.values() if n.use == "layout")
LIMIT_NAMES: Final = frozenset(n.name for n in NUMBERS.values() if n.recorded)
"""What a trace's limits may have, and so what a reserve's formulas may follow."""


def rows(*kinds: Kind) -> Iterable[Number]:
    """The rows of these kinds, all where none is named."""
    return [row for row in NUMBERS.values() if not kinds or row.kind in kinds]
