"""The numbers and settings of a vLLM engine: one row each, with every place it stands in.

All that reads, shows or asks for such a number derives from these rows: the recorder (the
config object, the environment), a model's config.json, logs and command lines, `--set`, the
reserve config, the rules of known sites. A new number is one row and its line in
docs/known-sites.md (scripts/make-docs); tests/unit/vllm/test_limits.py says what a
row forgot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Kind = Literal["size", "count", "switch", "word", "sizes"]
Use = Literal["layout", "live", "rule", "told"]

TP: Final = "tensor_parallel_size"
DP: Final = "data_parallel_size"
PCP: Final = "prefill_context_parallel_size"


class Number(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number or setting under the name that formulas use.

    `kind`: a size is 1 or more, a count 0 or more, a switch 0 or 1, a word a short name.
    `use`: `layout` decides shapes (a reserve holds for one layout only), `live` may change
    between two starts, `rule` is not recorded and only a rule's formula names it, `told` is
    shown and never computed with.
    `config` is the path below VllmConfig, `keys` are Hugging Face config keys (dots go into
    nested ones), `env` vLLM's environment variable, `logged` the names in logs and, with
    dashes, on the command line where vLLM's differ from `name`, `coded` other names that
    vLLM's code has for it. `shared_by` are the groups
    whose ranks share it: the value is one rank's.
    `default` is what vLLM's code takes when nobody sets it (a number, or an expression over
    other names), `why` the reason that default is one.
    """

    meaning: str
    name: str = ""
    kind: Kind = "size"
    use: Use = "rule"
    config: str = ""
    keys: tuple[str, ...] = ()
    env: str = ""
    flag: str = ""
    logged: tuple[str, ...] = ()
    coded: tuple[str, ...] = ()
    shared_by: tuple[str, ...] = ()
    default: int | str | None = None
    why: str = ""

    @property
    def least(self) -> int:
        """The smallest value it can have."""
        return 1 if self.kind == "size" and self.default != 0 else 0

    @property
    def recorded(self) -> bool:
        """Whether a trace's limits have it, so that a formula may follow it."""
        return self.use in ("layout", "live")

    @property
    def spellings(self) -> tuple[str, ...]:
        """How logs and, with dashes, command lines name it; () for what has no flag."""
        return self.logged or ((self.name,) if self.config and not self.keys else ())

    def where(self) -> str:
        """How to give this number, in one line."""
        places = [self.flag, self.env and f"environment {self.env}"]
        if self.keys:
            per = f" / {self.shared_by[0]}" if self.shared_by else ""
            places.append(f"config.json {' or '.join(self.keys)}{per}")
        places.append(f"--set {self.name}=N")
        return "; ".join(place for place in places if place)


def _rows() -> Iterator[tuple[str, Number]]:
    """In the order in which a reserve config lists them: the layout first."""
    yield from _MODEL.items()
    yield from _PARALLEL.items()
    yield from _LAYERS.items()
    yield from _SERVING.items()
    yield from _GRAPHS_AND_CACHE.items()
    yield from _KERNELS.items()
    yield from _TOLD.items()


_MODEL: Final = {
    "num_layers": Number(
        meaning="layers of the model", use="layout", keys=("num_hidden_layers",)
    ),
    "hidden_size": Number(
        meaning="width of the residual stream", use="layout", keys=("hidden_size",)
    ),
    "num_attention_heads": Number(
        meaning="query heads of one TP rank",
        use="layout",
        keys=("num_attention_heads",),
        coded=("num_heads",),
        shared_by=(TP,),
    ),
    "num_kv_heads": Number(
        meaning="KV heads of one TP rank, at least 1",
        use="layout",
        keys=("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
        shared_by=(TP,),
    ),
    "head_size": Number(
        meaning="elements of one head", use="layout", keys=("head_dim",), coded=("head_dim",)
    ),
    "dtype": Number(
        meaning="the model's dtype",
        kind="word",
        use="layout",
        config="model_config.dtype",
        flag="--dtype",
    ),
    "dtype_size": Number(
        meaning="bytes of one element of the model's dtype",
        use="live",
        flag="--dtype",
        default=2,
        why="float16 or bfloat16",
    ),
    "cache_dtype": Number(
        meaning="the KV cache's dtype",
        kind="word",
        use="layout",
        config="cache_config.cache_dtype",
        flag="--kv-cache-dtype",
        logged=("kv_cache_dtype",),
    ),
}
_PARALLEL: Final = {
    TP: Number(
        meaning="ranks of a tensor-parallel group",
        use="layout",
        config="parallel_config.tensor_parallel_size",
        flag="--tensor-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    "pipeline_parallel_size": Number(
        meaning="pipeline stages",
        use="layout",
        config="parallel_config.pipeline_parallel_size",
        flag="--pipeline-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    DP: Number(
        meaning="data-parallel ranks",
        use="live",
        config="parallel_config.data_parallel_size",
        flag="--data-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    "decode_context_parallel_size": Number(
        meaning="ranks that share one sequence's KV in decode",
        use="layout",
        config="parallel_config.decode_context_parallel_size",
        flag="--decode-context-parallel-size",
        default=1,
        why="vLLM's default",
    ),
    PCP: Number(
        meaning="ranks that share one sequence's prefill",
        use="layout",
        config="parallel_config.prefill_context_parallel_size",
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
        config="parallel_config.enable_expert_parallel",
        flag="--enable-expert-parallel",
    ),
    "all2all_backend": Number(
        meaning="how tokens reach the ranks of their experts",
        kind="word",
        use="layout",
        config="parallel_config.all2all_backend",
        flag="--all2all-backend",
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
        config="parallel_config.eplb_config.num_redundant_experts",
        flag="--eplb-config num_redundant_experts",
        default=0,
        why="vLLM's default",
    ),
    "enable_dbo": Number(
        meaning="whether a step is cut into two micro-batches",
        kind="switch",
        use="live",
        config="parallel_config.enable_dbo",
        flag="--enable-dbo",
    ),
}
_LAYERS: Final = {
    "num_experts": Number(
        meaning="routed experts of a layer, all ranks, without redundant copies",
        use="layout",
        keys=("num_experts", "n_routed_experts", "num_local_experts"),
    ),
    "top_k": Number(
        meaning="experts a token is sent to",
        use="layout",
        keys=("num_experts_per_tok", "top_k_experts", "moe_topk"),
    ),
    "moe_intermediate_size": Number(
        meaning="width of one routed expert on this rank; TP, DP and PCP ranks share it,"
        " under expert parallelism an expert is whole",
        use="layout",
        keys=("moe_intermediate_size", "intermediate_size"),
        shared_by=(TP, DP, PCP),
    ),
    "moe_hidden_dim": Number(
        meaning="width of a row of experts as the layer keeps it: padded by some quantised"
        " weights (MXFP4 Marlin to 256) and by DeepEP",
        use="live",
        default="hidden_size",
        why="no padding",
    ),
    "moe_intermediate_dim": Number(
        meaning="width of one expert on this rank as the layer keeps it, padding included",
        use="live",
        default="moe_intermediate_size",
        why="no padding",
    ),
    "num_local_experts": Number(
        meaning="experts of this rank, redundant copies included",
        use="live",
        default="ceil_div(num_experts + num_redundant_experts, expert_parallel_size)",
        why="shared evenly",
    ),
    "moe_max_num_tokens": Number(
        meaning="tokens one rank may dispatch at once (FusedMoEConfig.max_num_tokens)",
        use="live",
    ),
    "num_dispatchers": Number(meaning="ranks that dispatch to this one", use="live"),
    "max_encoder_len": Number(
        meaning="longest sequence of an encoder, which cross attention sees",
        kind="count",
        use="live",
        default=0,
        why="no encoder",
    ),
    "intermediate_size": Number(
        meaning="width of a dense layer's MLP, all ranks",
        use="layout",
        keys=("intermediate_size",),
    ),
    "kv_lora_rank": Number(
        meaning="width of MLA's compressed KV", use="layout", keys=("kv_lora_rank",)
    ),
    "qk_rope_head_dim": Number(
        meaning="rotary part of an MLA head", use="layout", keys=("qk_rope_head_dim",)
    ),
    "qk_nope_head_dim": Number(
        meaning="the other part of an MLA query head", use="layout", keys=("qk_nope_head_dim",)
    ),
    "v_head_dim": Number(
        meaning="width of a value head in MLA prefill", use="layout", keys=("v_head_dim",)
    ),
    "index_head_dim": Number(
        meaning="width of an indexer key", use="layout", keys=("index_head_dim",)
    ),
    "index_n_heads": Number(
        meaning="heads of the sparse indexer", use="layout", keys=("index_n_heads",)
    ),
    "index_topk": Number(
        meaning="tokens that the indexer selects for a query",
        use="layout",
        keys=("index_topk",),
    ),
    "index_kpool": Number(
        meaning="tokens that one indexer cache entry stands for", keys=("index_kpool",)
    ),
    "sliding_window": Number(
        meaning="tokens of the sliding window", use="live", keys=("sliding_window",)
    ),
    "compress_ratio": Number(
        meaning="tokens that one compressed KV entry stands for, the smallest of the model's"
        " layers that compress",
        use="live",
        keys=("compress_ratios",),
    ),
    "candidate_block_size": Number(
        meaning="compressed positions of one candidate block",
        keys=("candidate_block_size",),
        default=0,
        why="no candidate filtering",
    ),
    "candidate_topk_blocks": Number(
        meaning="candidate blocks that the source layer publishes",
        keys=("candidate_topk_blocks",),
        default=0,
        why="no candidate filtering",
    ),
    "max_image_tokens": Number(
        meaning="most tokens of one image in a DeepSeek-V4 vision model",
        keys=("vision_max_n_token",),
        default=0,
        why="no vision layers",
    ),
    "linear_num_heads": Number(
        meaning="linear-attention heads of one TP rank",
        keys=("linear_attn_config.num_heads", "num_attention_heads"),
        shared_by=(TP,),
    ),
    "linear_head_dim": Number(
        meaning="elements of one linear-attention head",
        keys=("linear_attn_config.head_dim", "head_dim"),
    ),
    "linear_num_value_heads": Number(
        meaning="value heads of the delta net on one TP rank",
        keys=("linear_num_value_heads",),
        shared_by=(TP,),
    ),
    "linear_value_head_dim": Number(
        meaning="elements of a value head", keys=("linear_value_head_dim",)
    ),
    "linear_key_head_dim": Number(
        meaning="elements of a key head", keys=("linear_key_head_dim",)
    ),
    "cp_kv_cache_interleave_size": Number(
        meaning="tokens in a row that one rank stores under context parallelism",
        use="layout",
        config="parallel_config.cp_kv_cache_interleave_size",
        flag="--cp-kv-cache-interleave-size",
    ),
}
_SERVING: Final = {
    "max_model_len": Number(
        meaning="longest sequence a request may have, in tokens",
        use="live",
        config="model_config.max_model_len",
        flag="--max-model-len",
        logged=("max_model_len", "max_seq_len"),
        coded=("max_seq_len",),
    ),
    "max_num_batched_tokens": Number(
        meaning="tokens one step may schedule",
        use="live",
        config="scheduler_config.max_num_batched_tokens",
        flag="--max-num-batched-tokens",
        coded=("max_num_tokens",),
    ),
    "max_num_seqs": Number(
        meaning="requests one step may hold",
        use="live",
        config="scheduler_config.max_num_seqs",
        flag="--max-num-seqs",
        coded=("max_num_reqs",),
    ),
    "num_speculative_tokens": Number(
        meaning="draft tokens a step verifies for each request",
        kind="count",
        use="live",
        config="speculative_config.num_speculative_tokens",
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
        config="speculative_config.parallel_drafting",
        flag="--speculative-config parallel_drafting",
        default=0,
        why="vLLM's default",
    ),
    "reorder_batch_threshold": Number(
        meaning="most tokens of a request that the attention backend still decodes",
        use="live",
        default=1,
        why="no short prefills among the decodes",
    ),
    "enable_chunked_prefill": Number(
        meaning="whether a long prompt is cut into steps",
        kind="switch",
        use="live",
        config="scheduler_config.enable_chunked_prefill",
        flag="--enable-chunked-prefill",
    ),
    "enable_prefix_caching": Number(
        meaning="whether KV of equal prefixes is used again",
        kind="switch",
        use="live",
        config="cache_config.enable_prefix_caching",
        flag="--enable-prefix-caching",
    ),
    "async_scheduling": Number(
        meaning="whether a step is scheduled while the last one runs",
        kind="switch",
        use="live",
        config="scheduler_config.async_scheduling",
        flag="--async-scheduling",
    ),
}
_GRAPHS_AND_CACHE: Final = {
    "block_size": Number(
        meaning="tokens a KV block of this layer holds (hybrid models enlarge it: see the"
        " start-up log)",
        use="live",
        config="cache_config.block_size",
        flag="--block-size",
        coded=("kv_block_size",),
    ),
    "max_cudagraph_capture_size": Number(
        meaning="largest token count that a graph is captured for",
        kind="count",
        use="live",
        config="compilation_config.max_cudagraph_capture_size",
        flag="--max-cudagraph-capture-size",
    ),
    "mixed_graph_tokens": Number(
        meaning="most tokens of a full graph that takes mixed steps, padding included",
        kind="count",
        use="live",
        default=0,
        why="no full graph of a mixed step",
    ),
    "cudagraph_capture_sizes": Number(
        meaning="token counts that graphs are captured for",
        kind="sizes",
        use="live",
        config="compilation_config.cudagraph_capture_sizes",
    ),
    "cudagraph_mode": Number(
        meaning="which steps run as graphs",
        kind="word",
        use="live",
        config="compilation_config.cudagraph_mode",
    ),
    "enforce_eager": Number(
        meaning="whether no graphs are captured",
        kind="switch",
        use="live",
        config="model_config.enforce_eager",
        flag="--enforce-eager",
    ),
    "kv_cache_memory_bytes": Number(
        meaning="the KV cache's bytes, where they are fixed by hand",
        kind="count",
        use="live",
        config="cache_config.kv_cache_memory_bytes",
        flag="--kv-cache-memory-bytes",
    ),
    "num_gpu_blocks_override": Number(
        meaning="the KV cache's blocks, where they are fixed by hand",
        kind="count",
        use="live",
        config="cache_config.num_gpu_blocks_override",
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
        config="attention_config.tq_max_kv_splits_for_cuda_graph",
        flag="--attention-config tq_max_kv_splits_for_cuda_graph",
        logged=("tq_max_kv_splits_for_cuda_graph",),
        default=32,
        why="vLLM's default",
    ),
    "sparse_mla_prefill_workspace_factor": Number(
        meaning="sparse MLA prefill workspace in multiples of max_model_len",
        use="live",
        config="attention_config.sparse_mla_prefill_workspace_factor",
        flag="--attention-config sparse_mla_prefill_workspace_factor",
        default="2 + 3 * (1 - min(1, max_model_len // 262145))",
        why="vLLM takes 5 up to 262144 tokens and 2 above",
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
    ),
    "fused_moe_chunk_size": Number(
        meaning="tokens that the fused MoE takes at once",
        use="live",
        env="VLLM_FUSED_MOE_CHUNK_SIZE",
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
