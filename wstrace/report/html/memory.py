"""Where a rank's memory goes, now and with the reserve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wstrace.findings.kv_sizing import kv_tokens
from wstrace.report.html.names import rank_label
from wstrace.reserve.schema import ReserveConfig
from wstrace.runs.accounting import accounting, window_of
from wstrace.runs.worker import Worker
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


def memory_view(workers: Sequence[Worker], reserve: ReserveConfig | None) -> MemoryView | None:
    """The rank with the smallest KV cache; None where no rank recorded its memory."""
    known = [v for v in workers if v.memory.available_kv_bytes is not None]
    if not known:
        return None
    worker = min(known, key=lambda v: v.memory.available_kv_bytes or 0)
    kv = worker.memory.available_kv_bytes or 0
    return MemoryView(
        rank=rank_label(worker.ranks, worker.world),
        others=len(workers) - 1,
        parts=_parts(worker, kv, reserve),
        total=worker.memory.total_bytes,
        fixed_kv=worker.memory.fixed_kv or "",
        tokens=kv_tokens(worker, kv),
    )


def _parts(worker: Worker, kv: int, reserve: ReserveConfig | None) -> tuple[Part, ...]:
    parts = [Part("KV cache", "kv", kv, None if reserve is None else _kv_after(kv, reserve))]
    parts += _arenas(worker, _reserved(reserve))
    if weights := worker.memory.weights_bytes:
        parts.insert(
            0, Part("weights", "weights", weights, None if reserve is None else weights)
        )
    return tuple(parts)


def _arenas(worker: Worker, reserved: int | None) -> list[Part]:
    """The arenas by what KV sizing made of them; a reserve is paid for unless it is fixed."""
    counted = sum(_counted(worker, slot) for slot in worker.slots())
    grown = max(0, sum(worker.arena_now(slot) for slot in worker.slots()) - counted)
    of, fixed = accounting(worker), worker.memory.fixed_kv is not None
    unknown = min(grown, of.unknown)
    after: tuple[int | None, int | None] = (None, None)
    if reserved is not None:
        whole = max(reserved, counted)
        after = (0, whole) if fixed else (whole, 0)
    parts = [
        Part("arena, counted in KV sizing", "arena", counted, after[0]),
        Part("arena, not counted", "uncounted", grown - unknown, after[1]),
    ]
    if unknown:
        zero = None if reserved is None else 0
        parts.append(Part(f"arena, unknown: {of.why['unknown']}", "unsure", unknown, zero))
    return parts


def _counted(worker: Worker, slot: Slot) -> int:
    sizes = [
        g.after for g in worker.growths if g.slot == slot and window_of(worker, g) == "counted"
    ]
    return sizes[-1] if sizes else 0


def _reserved(reserve: ReserveConfig | None) -> int | None:
    return None if reserve is None else sum(slot.bytes for slot in reserve.slots)


def _kv_after(kv: int, reserve: ReserveConfig) -> int:
    return max(0, kv - reserve.cost.bytes) if reserve.cost.counted else kv
