"""What a reserve config says: its records, and the digest of the engine it holds for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from wstrace.trace.records import Limit, Slot
from wstrace.vllm.limits import LAYOUT_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "wstrace-reserve"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 50

Grade = Literal["proved", "fitted", "observed"]
GRADES: Final[tuple[Grade, ...]] = get_args(Grade)
"""The strongest first."""
Cover = Literal["bound", "observed", "p99", "given"]


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
