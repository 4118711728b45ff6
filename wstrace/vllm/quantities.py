"""Amounts that vLLM derives from its config, each once: rules and limits use the same text.

A rule's formula names a term; `expanded` puts the expression in its place, so that what a
person or a reserve config reads is over the config's own numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.vllm.number import DP, TP

if TYPE_CHECKING:
    from collections.abc import Mapping


def padded_decode_rows(width: str) -> str:
    """Rows of a batch of decodes padded to its longest, which has at most `width` tokens.

    n decodes with w tokens in one of them take n + w - 1 of the token budget and make n * w
    rows. That grows with w up to half of the budget, and up to where all requests still fit.
    Read in vLLM 0.24.0 to 0.33.0: the indexer pads with pack_seq_triton.
    """
    budget = "(max_num_batched_tokens + 1)"
    longest = f"min({width}, max({budget} // 2, {budget} - max_num_seqs))"
    return f"min(max_num_seqs, {budget} - {longest}) * {longest}"


_BOTH: Final = (
    "min(1, prefill_context_parallel_size - 1) * min(1, decode_context_parallel_size - 1)"
)
_DRAFTS: Final = "(1 + num_speculative_tokens)"
_WHOLE_TP: Final = (
    "(1 + (tensor_parallel_size - 1) * min(1, expert_parallel_size - 1)"
    " * min(1, data_parallel_size - 1) * (1 - min(1, sequence_parallel_size - 1)))"
)
"""TP ranks that each dispatch the whole step: an all2all under expert parallelism without
sequence parallelism (FlashInfer two-sided), where no rank drops its copy."""

TERMS: Final = {
    "decode_requests": "max(max_num_seqs, mixed_graph_tokens)",
    "decode_tokens": (
        "max(max_num_seqs * (1 + num_speculative_tokens * (1 + parallel_drafting)),"
        " mixed_graph_tokens)"
    ),
    "moe_rows": (
        f"data_parallel_size * {_WHOLE_TP}"
        " * round_up(max_num_batched_tokens, sequence_parallel_size)"
    ),
    "padded_decode_rows": padded_decode_rows(_DRAFTS),
    "pcp_and_dcp": _BOTH,
    "gathered_query_heads": (
        "num_attention_heads * (1 + (tensor_parallel_size - 1)"
        " * min(1, max(0, decode_context_parallel_size - prefill_context_parallel_size))"
        f" * {_BOTH})"
    ),
}
"""decode_requests, decode_tokens: rows of a decode kernel, a full graph's padding among them;
one token a request, or its drafts too (twice as many slots with parallel drafting).
moe_rows: most tokens that reach the experts of one rank, those of all ranks that dispatch
to it. Each data-parallel rank has max_num_batched_tokens, rounded up to the TP ranks that split
them (0.13.0 to 0.33.0: ParallelConfig.use_sequence_parallel_moe).
pcp_and_dcp: 1 where prefill and decode context parallelism are both on, else 0.
gathered_query_heads: FlashMLASparseImpl.__init__ of 0.33.0, prefill_query_heads."""

# a whole word, no part of another name
# matches: "8 * moe_rows"
_TERM: Final = re.compile(rf"\b({'|'.join(TERMS)})\b")


_UNPADDED: Final = ("NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""The modes whose full graphs, if any, take decodes alone and are captured for no more of them
than there can be. vLLM 0.13.0 to 0.33.0: CUDAGraphMode, and the dispatcher's keys."""


def widest_mixed_graph(limits: Mapping[str, object]) -> int:
    """Most tokens of a full graph that takes mixed steps; 0 where there is none.

    Under FULL vLLM's attention metadata has the padded count: 64 requests, a graph for 128
    tokens, and the layer sees 128 decoding tokens.
    """
    for name in (
        "widest_mixed_graph",
        "mixed_graph_tokens",
    ):  # a trace of before has the second
        told = limits.get(name)
        if isinstance(told, int):
            return told
    widest = limits.get("max_cudagraph_capture_size")
    padded = isinstance(widest, int) and limits.get("cudagraph_mode") not in _UNPADDED
    return widest if padded and isinstance(widest, int) else 0


def mixed_graph_tokens(limits: Mapping[str, object]) -> int:
    """Most tokens that such a graph counts where every request decodes, its padding included.

    A step is padded to the next size that was captured, and not at all beyond the last. With
    data parallelism all ranks are padded to the longest step among them (0.13.0 to 0.33.0:
    the dispatcher's table of sizes, coordinate_batch_across_dp).
    """
    told = limits.get("mixed_graph_tokens")
    if isinstance(told, int):
        return told
    widest, sizes = widest_mixed_graph(limits), limits.get("cudagraph_capture_sizes")
    seqs, tp = limits.get("max_num_seqs"), limits.get(TP) or 1
    drafts = limits.get("num_speculative_tokens") or 0
    if not widest or not isinstance(sizes, list) or limits.get(DP, 1) != 1:
        return widest
    if not (isinstance(seqs, int) and isinstance(tp, int) and isinstance(drafts, int)):
        return widest
    times = 1 + int(bool(limits.get("parallel_drafting")))
    most = -(-seqs * (1 + times * drafts) // tp) * tp  # sequence parallelism rounds up first
    return min((size for size in sizes if size >= most), default=0)


MIXED_GRAPHS: Final = ("mixed_graph_tokens", "widest_mixed_graph")


def mixed_graphs(limits: Mapping[str, object]) -> tuple[int, int]:
    """The `MIXED_GRAPHS` of an engine."""
    return mixed_graph_tokens(limits), widest_mixed_graph(limits)


def expanded(text: str) -> str:
    """A rule's formula with its terms written out."""
    return _TERM.sub(lambda found: f"({TERMS[found[1]]})", text)
