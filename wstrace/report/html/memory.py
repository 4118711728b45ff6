"""Where a rank's memory goes, now and with the reserve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wstrace.analysis.memory import kv_tokens
from wstrace.analysis.rank import RankView
from wstrace.report.html.names import rank_label
from wstrace.reserve.schema import ReserveConfig
from wstrace.trace.records import Slot


@dataclass(frozen=True)
class Part:
    """One use of memory, in bytes; `after` is None where no reserve is known."""

    name: str
    key: str
    now: int
    after: int | None
    note: str = ""


@dataclass(frozen=True)
class MemoryView:
    """The parts of one rank's memory. `total` is the device's, None where unknown."""

    rank: str
    others: int
    parts: tuple[Part, ...]
    total: int | None
    fixed_kv: str
    tokens: int | None


def memory_view(views: Sequence[RankView], reserve: ReserveConfig | None) -> MemoryView | None:
    """The rank with the smallest KV cache; None where no rank recorded its memory."""
    known = [v for v in views if v.memory.available_kv_bytes is not None]
    if not known:
        return None
    view = min(known, key=lambda v: v.memory.available_kv_bytes or 0)
    kv = view.memory.available_kv_bytes or 0
    return MemoryView(
        rank=rank_label(view.ranks, view.worker.world),
        others=len(views) - 1,
        parts=_parts(view, kv, reserve),
        total=view.memory.total_bytes,
        fixed_kv=view.memory.fixed_kv or "",
        tokens=kv_tokens(view, kv),
    )


def _parts(view: RankView, kv: int, reserve: ReserveConfig | None) -> tuple[Part, ...]:
    counted = {s: _counted(view, s) for s in view.slots()}
    grown = sum(max(0, view.arena_now(s) - counted[s]) for s in counted)
    reserved = _reserved(view, reserve)
    parts = [
        Part("KV cache", "kv", kv, None if reserve is None else _kv_after(kv, reserve)),
        Part(
            "arena, counted in KV sizing",
            "arena",
            sum(counted.values()),
            None if reserved is None else max(reserved, sum(counted.values())),
        ),
        Part(
            "arena, not counted",
            "uncounted",
            grown,
            None if reserved is None else 0,
            "grew after KV sizing had looked",
        ),
    ]
    if view.memory.weights_bytes:
        weights = view.memory.weights_bytes
        parts.insert(
            0, Part("weights", "weights", weights, None if reserve is None else weights)
        )
    return tuple(parts)


def _counted(view: RankView, slot: Slot) -> int:
    sizes = [g.after for g in view.growths if g.slot == slot and g.window == "counted"]
    return sizes[-1] if sizes else 0


def _reserved(view: RankView, reserve: ReserveConfig | None) -> int | None:
    return None if reserve is None else sum(slot.bytes for slot in reserve.slots)


def _kv_after(kv: int, reserve: ReserveConfig) -> int:
    return max(0, kv - reserve.cost.bytes) if reserve.cost.counted else kv
