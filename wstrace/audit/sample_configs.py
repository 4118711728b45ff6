"""Configurations under which two formulas are compared, and the numbers that names stand for.

A reservation and a serving request name one number in several ways (`num_heads` of a layer,
`num_attention_heads` of the model by TP). Here each name has one value in one configuration, so
both are computed from the same numbers. A name that is not known has a value made from its
letters: the same in both formulas, another in each configuration.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final

from wstrace.vllm.limits import NUMBERS

Config = Mapping[str, int]

_COMMON: Final = {
    "tensor_parallel_size": 1,
    "data_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "num_attention_heads": 16,
    "num_kv_heads": 4,
    "head_size": 128,
    "hidden_size": 2048,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "sliding_window": 128,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "compress_ratio": 4,
    "num_sms": 132,
    "dtype_size": 2,
    "mixed_graph_tokens": 0,
    "widest_mixed_graph": 0,
    "enable_chunked_prefill": 1,
    "enable_prefix_caching": 1,
    "tq_max_kv_splits_for_cuda_graph": 32,
}
_VARIED: Final[tuple[tuple[int, int, int, int, int, dict[str, int]], ...]] = (
    (32768, 8192, 256, 16, 512, {}),
    (131072, 2048, 1024, 64, 512, {"num_kv_heads": 1}),
    (4096, 16384, 8, 256, 8, {"num_attention_heads": 128, "head_size": 256}),
    (1048576, 8192, 64, 16, 64, {"tensor_parallel_size": 8, "head_size": 512}),
    (8192, 512, 512, 32, 512, {"decode_context_parallel_size": 4, "compress_ratio": 128}),
    (40960, 8192, 128, 128, 256, {"num_speculative_tokens": 3, "reorder_batch_threshold": 4}),
)
CONFIGS: Final[tuple[dict[str, int], ...]] = tuple(
    _COMMON
    | {
        "max_model_len": length,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": requests,
        "block_size": block,
        "max_cudagraph_capture_size": graph,
    }
    | extra
    for length, tokens, requests, block, graph, extra in _VARIED
)
"""Short and long models, a token budget above and below the length and the requests, one KV
head, tensor and context parallel ranks, draft tokens."""

# vLLM 0.13.0 to 0.33.0: other names of these numbers in layers, impls and builders.
_NAMES: Final = {
    "dcp_world_size": "decode_context_parallel_size",
    "pcp_world_size": "prefill_context_parallel_size",
    "tp_size": "tensor_parallel_size",
    "tp_world_size": "tensor_parallel_size",
    "sm_count": "num_sms",
    "num_compute_units": "num_sms",
    "max_num_kv_splits": "tq_max_kv_splits_for_cuda_graph",
    "window_size": "sliding_window",
    "max_tokens": "max_num_batched_tokens",
    "max_capture_size": "max_cudagraph_capture_size",
    "dcp_max_num_tokens": "max_num_batched_tokens",
    "q_head_size": "head_size",
}
_ALIASES: Final = _NAMES | {
    coded: row.name or name for name, row in NUMBERS.items() for coded in row.coded
}
# vLLM 0.13.0 to 0.33.0: AttentionImpl.forward gives query as [tokens, heads, head_size], and
# a KV cache's second dimension is its block. Decode context parallelism gathers the heads.
_DIMENSIONS: Final = {
    "q_last": "head_size",
    "q_2": "head_size",
    "query_2": "head_size",
    "query_last": "head_size",
    "kv_cache_1": "block_size",
}
_GATHERED: Final = ("q_1", "query_1")
# matches: "max_model_len_2"
_NUMBERED: Final = re.compile(r"_\d+$")
_ITEMSIZE: Final = "itemsize"


def canonical(name: str, assumed: bool) -> str:
    """One spelling of a leaf's name. Of an `assumed` dimension, the number is its index."""
    if assumed:
        return _DIMENSIONS.get(name, name)
    plain = _NUMBERED.sub("", name)
    return _ALIASES.get(plain, plain)


def value(name: str, config: Config) -> int:
    """The number that a canonical name stands for in one configuration."""
    known = told(name, config)
    if known is not None:
        return known
    return 1 + zlib.crc32(f"{name}/{config['max_model_len']}".encode()) % 61


def told(name: str, config: Config) -> int | None:
    """The number that a configuration gives for a canonical name; None where it does not."""
    if name in config:
        return config[name]
    heads = config.get("num_attention_heads")
    if name in _GATHERED and heads is not None:
        return heads * config.get("decode_context_parallel_size", 1)
    if name == "total_num_attention_heads" and heads is not None:
        return heads * config.get("tensor_parallel_size", 1)
    if name.endswith(_ITEMSIZE):
        return 1 if "fp8" in name else config.get("dtype_size", 2)
    row = NUMBERS.get(name)
    return row.default if row is not None and isinstance(row.default, int) else None
