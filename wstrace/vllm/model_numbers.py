"""The numbers that a model has: of its config.json, of its layers and of its experts."""

from __future__ import annotations

from typing import Final

from wstrace.vllm.number import DP, PCP, TP, Number

MODEL: Final = {
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
        config=("model_config.dtype",),
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
        config=("cache_config.cache_dtype",),
        flag="--kv-cache-dtype",
        logged=("kv_cache_dtype",),
    ),
}
LAYERS: Final = {
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
        config=("parallel_config.cp_kv_cache_interleave_size",),
        flag="--cp-kv-cache-interleave-size",
    ),
}
