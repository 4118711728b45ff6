"""A small, complete reserve config that the tests change one thing of."""

from __future__ import annotations

from wstrace.reserve.config import (
    Cost,
    Model,
    NotCovered,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    layout,
    model_digest,
)
from wstrace.trace.records import Limit, Slot

LIMITS: dict[str, Limit] = {
    "max_model_len": 4096,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 8,
    "block_size": 16,
    "num_attention_heads": 8,
    "num_kv_heads": 2,
    "head_size": 64,
    "num_layers": 2,
    "tensor_parallel_size": 1,
    "dtype": "bfloat16",
    "cache_dtype": "auto",
}
CONTINUATION = SiteReserve(
    site="attention.py:Attention._continuation",
    grade="proved",
    bytes=4194304,
    observed=131072,
    formula="2 * round256(num_kv_heads * round_up(num_computed_tokens, block_size) * wide * 2)",
    constants={"wide": 128},
    drivers={"num_computed_tokens": "max_model_len - 1"},
    why="read from the source",
)
SCRATCH = SiteReserve(
    site="attention.py:Attention._scratch",
    grade="observed",
    bytes=3000000,
    cover="observed",
    observed=3000000,
    slots=[Slot(0, 1)],
)


def config(**changes: object) -> ReserveConfig:
    """Two sites in two slots; `changes` replaces fields. The model is that of the limits."""
    limits: dict[str, Limit] = changes.get("limits", LIMITS)  # type: ignore[assignment]
    fields: dict[str, object] = {
        "made_by": "wstrace 0.1",
        "model": Model(name="tiny", digest=model_digest(limits), layout=layout(limits)),
        "limits": LIMITS,
        "slots": [SlotReserve(bytes=4194304), SlotReserve(lane=1, bytes=4194304)],
        "sites": [CONTINUATION, SCRATCH],
        "cost": Cost(bytes=4194304, tokens=1024, blocks=64),
        "not_covered": [NotCovered(site="moe.py:reserve", why="its own scratch")],
        **changes,
    }
    return ReserveConfig(**fields)  # type: ignore[arg-type]
