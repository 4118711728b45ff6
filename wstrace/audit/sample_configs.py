"""Configurations under which two formulas are compared, and the numbers that names stand for.

A reservation and a serving request name one number in several ways (`num_heads` of a layer,
`num_attention_heads` of the model by TP). Here each name has one value in one configuration, so
both are computed from the same numbers. A name that is not known has a value made from its
letters: the same in both formulas, another in each configuration.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from wstrace.expr.tree import unnumbered
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
    (
        40960,
        8192,
        128,
        128,
        256,
        {"num_speculative_tokens": 3, "reorder_batch_threshold": 4, "compress_ratio": 1},
    ),
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

# A formula is the same for small and for large numbers, but where it rounds or caps.
_WIDE: Final = (1024, 64, 128)
_WIDER: Final = 97
_LIMITS: Final = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
_BEYOND: Final = 1 << 12
"""So far above a cap that a number divided before it reaches it too."""
_MOST: Final = 1 << 32


def stressed_by(cap: int, names: Sequence[str], limits: bool) -> Iterator[Config]:
    """Configurations with one number, or all limits, just above, far above and at a cap.

    `names` are canonical; the scheduler's limits are among them where `limits`.
    """
    alone = [*names, *(n for n in _LIMITS if limits and n not in names)]
    groups = [*((n,) for n in alone), tuple(n for n in _LIMITS if n in alone)]
    for number in (cap, cap + 1, (cap + 1) * _BEYOND):
        if 0 < number <= _MOST:
            for base in CONFIGS[:2]:
                yield from (base | dict.fromkeys(group, number) for group in groups)


def allows(condition: str, holds: bool, config: Config) -> bool:
    """Whether a condition, in one spelling, can go this way under a configuration: one over
    its numbers goes one way only."""
    try:
        test = ast.parse(condition, mode="eval").body
    except SyntaxError:
        return True
    found = _truth(test, config)
    return found is None or found == holds


def compared(conditions: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The constants that conditions compare a number of the config with, and its name."""
    for condition in sorted(conditions):
        try:
            test = ast.parse(condition, mode="eval").body
        except SyntaxError:
            continue
        sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else []
        constants = [n.value for n in sides if isinstance(n, ast.Constant)]
        names = [canonical(n.id, False) for n in sides if isinstance(n, ast.Name)]
        known = (name for name in names if told(name, CONFIGS[0]) is not None)
        numbers = [n for n in constants if isinstance(n, int)]
        yield from ((number, name) for name in known for number in numbers)


def _truth(test: ast.expr, config: Config) -> bool | None:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        compare = _COMPARE.get(type(test.ops[0]))
        if isinstance(test.ops[0], ast.Is) and ast.unparse(test) == f"{_DRAFTING} is None":
            return not _number(test.left, config)
        left, right = _number(test.left, config), _number(test.comparators[0], config)
        if compare is None or left is None or right is None:
            return None
        return bool(compare(left, right))
    number = _number(test, config)
    return None if number is None else bool(number)


def _number(node: ast.expr, config: Config) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    name = node.id if isinstance(node, ast.Name) else ""
    if name == _DRAFTING:
        return config.get("num_speculative_tokens", 0)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
        named = node.args[1] if len(node.args) > 1 else None
        name = str(named.value) if isinstance(named, ast.Constant) else ""
    return told(canonical(name, False), config) if name else None


# vLLM 0.13.0 to 0.33.0: None where no tokens are drafted.
_DRAFTING: Final = "speculative_config"
_COMPARE: Final = {
    ast.Gt: int.__gt__,
    ast.Lt: int.__lt__,
    ast.Eq: int.__eq__,
}
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
_ITEMSIZE: Final = "itemsize"


def canonical(name: str, assumed: bool) -> str:
    """One spelling of a leaf's name. Of an `assumed` dimension, the number is its index."""
    if assumed:
        return _DIMENSIONS.get(name, name)
    plain = unnumbered(name)
    return _ALIASES.get(plain, plain)


def value(name: str, config: Config) -> int:
    """The number that a canonical name stands for in one configuration."""
    known = told(name, config)
    if known is not None:
        return known
    small = 1 + zlib.crc32(f"{name}/{config['max_model_len']}".encode()) % 61
    return small * _WIDER if config["max_num_seqs"] in _WIDE else small


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
