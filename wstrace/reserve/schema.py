"""What a reserve config says: its records, and the digest of the engine it holds for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from wstrace.trace.records import Limit, Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "wstrace-reserve"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 50

Grade = Literal["proved", "fitted", "observed"]
Cover = Literal["bound", "observed", "p99", "given"]

LAYOUT_NAMES: Final[tuple[str, ...]] = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_kv_heads",
    "head_size",
    "dtype",
    "cache_dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "expert_parallel_size",
    "enable_expert_parallel",
    "all2all_backend",
    "num_experts",
    "top_k",
    "moe_intermediate_size",
    "intermediate_size",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_head_dim",
    "index_n_heads",
    "index_topk",
    "cp_kv_cache_interleave_size",
)
LIVE_NAMES: Final[tuple[str, ...]] = (
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "data_parallel_size",
    "num_speculative_tokens",
    "max_cudagraph_capture_size",
    "cudagraph_capture_sizes",
    "cudagraph_mode",
    "enforce_eager",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "async_scheduling",
    "enable_dbo",
    "tq_max_kv_splits",
    "dtype_size",
    "sliding_window",
    "num_sms",
    "sparse_mla_prefill_workspace_factor",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "flashinfer_workspace_bytes",
    "sparse_indexer_max_logits_mb",
    "reorder_batch_threshold",
    "parallel_drafting",
    "num_redundant_experts",
    "fused_moe_chunk_size",
)
LIMIT_NAMES: Final[frozenset[str]] = frozenset(LAYOUT_NAMES + LIVE_NAMES)


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine a config holds for: base name of the model, digest and layout numbers."""

    name: str = ""
    digest: str
    layout: dict[str, Limit] = {}


class SiteReserve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one site gets.

    `site` is 'file:function'. `slots` are the slots that ask there (empty: any).
    `formula` is over `constants`, `drivers` and limit names; a driver is maximised over
    its range, from its `lowest` (0) to the limit expression given here, while every
    expression of `joint` stays at or below 0. `bytes` is what the formula gave, or what
    was seen where `cover` is not `bound`.
    """

    site: str
    grade: Grade
    bytes: int
    cover: Cover = "bound"
    observed: int = 0
    slots: list[Slot] = []
    formula: str | None = None
    constants: dict[str, int] = {}
    drivers: dict[str, str] = {}
    lowest: dict[str, int] = {}
    joint: list[str] = []
    why: str = ""

    @property
    def follows_limits(self) -> bool:
        """True where the bytes are computed again from the live config."""
        return self.cover == "bound" and self.grade != "observed" and bool(self.formula)


class SlotReserve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Total of one slot: the maximum over its sites, never the sum (they share the arena)."""

    ubatch: int = 0
    lane: int = 0
    bytes: int


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the reserve costs on each rank, after what profiling counted already.

    `counted` is False where the KV cache size is fixed by hand: then nothing pays for it.
    """

    bytes: int = 0
    tokens: int | None = None
    blocks: int | None = None
    counted: bool = True
    note: str = ""


class NotCovered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A need that an arena reserve cannot meet, and what helps instead."""

    site: str
    why: str
    what_helps: str = ""


class ReserveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reserve config, version 1. Sizes are bytes."""

    kind: Literal["wstrace-reserve"] = KIND
    version: Literal[1] = VERSION
    made_by: str = ""
    model: Model
    limits: dict[str, Limit] = {}
    slots: list[SlotReserve] = []
    sites: list[SiteReserve] = []
    cost: Cost = Cost()
    not_covered: list[NotCovered] = []


def layout(limits: Mapping[str, Limit]) -> dict[str, Limit]:
    """The limits that decide shapes; data_parallel_size counts only where there are experts.

    A dense model under DP is one engine per rank, whose shapes do not know of the others.
    """
    names = LAYOUT_NAMES
    if limits.get("num_experts"):
        names += ("data_parallel_size",)
    return {name: limits[name] for name in names if limits.get(name) is not None}


def model_digest(limits: Mapping[str, Limit]) -> str:
    """Sixteen hex digits over the layout (not over max_model_len and its like)."""
    text = "\n".join(f"{name}={value}" for name, value in sorted(layout(limits).items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
