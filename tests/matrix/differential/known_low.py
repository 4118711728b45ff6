"""Proved bounds that are known to be too low, with the reason; an empty table is the aim.

A row names what the engines of its states have in common. The long run fails for a row that no
state needs any more, so that a mended rule takes its row with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.matrix.differential.harness import Low


@dataclass(frozen=True)
class Known:
    """One reason why a proved bound is too low."""

    reason: str
    covers: Callable[[Low], bool]


def _moe(low: Low) -> bool:
    return low.scene.startswith("MoE")


KNOWN = (
    Known(
        "fused MoE under PCP: the rows of the other PCP ranks are in no rule",
        lambda low: _moe(low) and low.engine["prefill_context_parallel_size"] > 1,
    ),
    Known(
        "fused MoE, MoRI or FlashInfer two-sided: each rank of its group sends its rows",
        lambda low: _moe(low) and low.engine.dispatch == "pairwise",
    ),
    Known(
        "fused MoE, sequence parallel: its size is not recorded, and rows not rounded",
        lambda low: _moe(low) and low.engine["sequence_parallel_size"] > 1,
    ),
    Known(
        "MXFP4 weights of Marlin are padded; the rule takes the model's own widths",
        lambda low: low.scene == "MoE MarlinExperts, MXFP4 weights",
    ),
    Known(
        "the sparse indexer gathers twice more under PCP with DCP",
        lambda low: low.scene == "sparse indexer gather",
    ),
    Known(
        "FlashMLA sparse keeps a gathered and a local prefill buffer under PCP with DCP",
        lambda low: low.scene == "FlashMLA sparse FP8",
    ),
    Known(
        "ROCm paged logits, budgets below two full decodes: fewer drafts pad to more rows",
        lambda low: low.scene == "ROCm paged logits",
    ),
    Known(
        "a mixed FULL graph pads a batch of decodes above max_num_seqs",
        lambda low: "decode" in low.scene or "verify" in low.scene,
    ),
)


def reason_of(low: Low) -> Known | None:
    """The first row that covers this state."""
    return next((known for known in KNOWN if known.covers(low)), None)
