"""Scheduler quantities: what a request can follow, and how large the config lets each get.

A formula's leaf is either a constant or a driver; a driver is useful only when the source
shows *which* scheduler quantity it is, because those have limits in the config. A number that
is absent drops its term where vLLM's default makes the term neutral (no draft tokens, one
rank). docs/bounds.md says where each limit comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from wstrace.vllm.quantities import padded_decode_rows

Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Role:
    """One quantity of a step.

    `limit` gives the expression of its largest value, over the config's names; `why` is the
    reason for it. Its smallest value is 1, or 0 where it `can_be_zero`.
    """

    meaning: str
    limit: Callable[[Numbers], str]
    why: str
    can_be_zero: bool = False


def _always(text: str) -> Callable[[Numbers], str]:
    return lambda numbers: text


def most_requests(numbers: Numbers) -> str:
    """Requests of a step; under PCP a rank has two chunks of each prefill, each a row of its
    own (0.33.0: PCPManager._iter_rank_chunks)."""
    several = _several("prefill_context_parallel_size", numbers)
    return "2 * max_num_seqs" if several else "max_num_seqs"


def longest(numbers: Numbers) -> str:
    """Cross attention sees the encoder's sequence: Whisper's 1500 against 448 decoded."""
    if numbers.get("max_encoder_len"):
        return "max(max_model_len, max_encoder_len)"
    return "max_model_len"


def _decode_tokens(numbers: Numbers) -> str:
    width = decode_width(numbers)
    tokens = "max_num_seqs"
    if width != "1":
        tokens = f"min(max_num_batched_tokens, max_num_seqs * {width})"
    drafts = width == drafts_width(numbers)
    padded = "mixed_graph_tokens" if drafts else "widest_mixed_graph"
    return f"max({tokens}, {padded})" if numbers["widest_mixed_graph"] else tokens


def drafts_width(numbers: Numbers) -> str:
    """Tokens of a request that verifies its drafts; a parallel drafter of the V1 runner may
    append as many mask slots as there are drafts."""
    if "num_speculative_tokens" not in numbers:
        return "1"
    times = "2 * " if numbers.get("parallel_drafting") else ""
    return f"(1 + {times}num_speculative_tokens)"


def decode_width(numbers: Numbers) -> str:
    """Most tokens that a request may have and still count as decoding.

    `reorder_batch_threshold` is above 1 in MLA backends that decode short prefills (128 in
    FlashMLA, 512 in FlashAttention MLA, up to 1024 in FlashInfer's sparse MLA). Of an MLA
    model whose threshold was not recorded every token may count as decoding.
    """
    drafts = drafts_width(numbers)
    threshold = numbers.get("reorder_batch_threshold")
    if threshold is None and "kv_lora_rank" in numbers:
        return "max_num_batched_tokens"
    if threshold is not None and threshold > 1:
        return f"max({drafts}, reorder_batch_threshold)"
    return drafts


def _decode_rows(numbers: Numbers) -> str:
    """Padding is the sparse indexers', which take only verified drafts for decodes."""
    width = drafts_width(numbers)
    return "max_num_seqs" if width == "1" else padded_decode_rows(width)


def _padded(numbers: Numbers) -> str:
    widest = "max_num_batched_tokens"
    if "max_cudagraph_capture_size" in numbers:
        widest = f"max({widest}, max_cudagraph_capture_size)"
    if _several("tensor_parallel_size", numbers):
        return f"round_up({widest}, tensor_parallel_size)"
    return widest


def _table_width(numbers: Numbers) -> str:
    """Blocks of the longest sequence, as the kernels see them.

    vLLM 0.27.1 to 0.33.0 align the row to 128 tokens, so to 128 blocks at most, before blocks
    are split for the kernel; earlier ones do not, so that this is never less. Context
    parallelism is not counted: which layers it shares blocks of depends on the release and on
    their kind (a recurrent state is on every rank).
    """
    width = f"round_up(ceil_div({longest(numbers)}, block_size), 128)"
    if numbers.get("kernel_block_size", 0) not in (0, numbers.get("block_size")):
        width = f"{width} * ceil_div(block_size, kernel_block_size)"
    if "num_speculative_tokens" in numbers:
        return f"{width} + num_speculative_tokens"
    return width


def _several(name: str, numbers: Numbers) -> bool:
    """More than one rank: group sizes are part of the layout and never change later."""
    return numbers.get(name, 1) > 1


def _all_at_length(numbers: Numbers) -> str:
    return f"{most_requests(numbers)} * {longest(numbers)}"


ROLES: Final[dict[str, Role]] = {
    "num_computed_tokens": Role(
        "tokens of one request whose KV was cached before this step",
        _always("max_model_len - 1"),
        "the scheduler keeps one position free for the next token",
        can_be_zero=True,
    ),
    "seq_len": Role(
        "computed and scheduled tokens of one request",
        longest,
        "the scheduler and the drafter stop at the model length",
    ),
    "query_len": Role(
        "scheduled tokens of one request in this step",
        _always("min(max_num_batched_tokens, max_model_len)"),
        "one request's share of the step's token budget, within its length",
    ),
    "num_scheduled_tokens": Role(
        "scheduled tokens of the step, all requests, unpadded",
        _always("max_num_batched_tokens"),
        "the scheduler's token budget",
    ),
    "num_padded_tokens": Role(
        "tokens of the step after graph, sequence-parallel or DP padding",
        _padded,
        "the token budget or the widest graph, rounded up to the TP ranks",
    ),
    "num_reqs": Role(
        "requests in the step",
        most_requests,
        "the scheduler's request budget",
    ),
    "num_decodes": Role(
        "requests in the step that decode",
        _always("max_num_seqs"),
        "every running request may decode",
        can_be_zero=True,
    ),
    "num_decode_tokens": Role(
        "tokens of decoding requests, draft tokens included",
        _decode_tokens,
        "a decoding request verifies its drafts and one more token; a full graph of a mixed"
        " step counts its padding",
        can_be_zero=True,
    ),
    "num_decode_rows": Role(
        "decoding requests times the tokens of their longest: a padded batch",
        _decode_rows,
        "one request with all its drafts pads every other to its length",
        can_be_zero=True,
    ),
    "num_prefills": Role(
        "requests in the step that prefill",
        most_requests,
        "every running request may prefill",
        can_be_zero=True,
    ),
    "num_prefill_tokens": Role(
        "tokens of prefilling requests",
        _always("max_num_batched_tokens"),
        "the scheduler's token budget",
        can_be_zero=True,
    ),
    "total_seq_len": Role(
        "sum of the sequence lengths of the step's requests",
        _all_at_length,
        "every running request at the model length",
    ),
    "max_blocks_per_req": Role(
        "width of the block table: KV blocks of one request",
        _table_width,
        "the block table's width, aligned for 128-token tiles, its blocks split for the kernel",
    ),
}
