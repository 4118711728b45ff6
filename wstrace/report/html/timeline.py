"""The life of one slot: its arena and what was asked of it, in bands of phases.

Warm-up lasts milliseconds and serving hours, so the axis counts events, not seconds: every
phase gets a band as wide as its events need, and an empty phase stays visible because "never
asked in warm-up" is what the picture is there to show. A band with many events is binned;
each bin keeps the largest of its kind, so no escape and no maximum is ever lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.finding_text import step_text
from wstrace.report.html.names import figure_text, rank_label
from wstrace.runs.lock_epochs import Outcome
from wstrace.runs.worker import Worker
from wstrace.trace.records import (
    Capture,
    Failure,
    Growth,
    Lock,
    PhaseChange,
    Record,
    Request,
    ReserveEvent,
    Slot,
)
from wstrace.units import human, plural

Kind = Literal["warm-up", "serving", "escape", "refused", "growth", "reserve"]
KINDS: Final[dict[Outcome, Kind]] = {
    "before": "warm-up",
    "warmed": "serving",
    "latent": "serving",
    "outgrew": "serving",
    "escaped": "escape",
}
BINS: Final = 240
MOST_SLOTS: Final = 8
MOST_BANDS: Final = 24
LABEL: Final = 0.0062
"""Width of a letter of a phase's name, of the whole axis."""
MOST_LABELS: Final = 0.8
COLLECTED: Final = frozenset((Request, Growth, Failure, Lock, Capture, ReserveEvent))
SHORT_LIVED: Final = frozenset(("init",))


@dataclass(frozen=True)
class Point:
    """One event: where it stands (0 to 1 in its band's axis), bytes, and its hover text."""

    x: float
    bytes: int
    text: str


@dataclass(frozen=True)
class Band:
    """A phase between two places of the axis."""

    phase: str
    start: float
    end: float


@dataclass(frozen=True)
class Mark:
    """A vertical line: the lock, an unlock, or the end of the captures."""

    x: float
    text: str


@dataclass
class Timeline:
    """One slot of one worker, ready to draw. `events` were seen, `drawn` are points."""

    slot: Slot
    rank: str
    others: int
    bands: list[Band] = field(default_factory=list)
    arena: list[Point] = field(default_factory=list)
    points: dict[Kind, list[Point]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    events: int = 0

    @property
    def drawn(self) -> int:
        """Points on the page."""
        return sum(len(points) for points in self.points.values())


@dataclass
class _Stretch:
    """The events of one phase, in order, before they get a place."""

    phase: str
    events: list[Request | Growth | Failure] = field(default_factory=list)
    locks: list[tuple[int, Lock]] = field(default_factory=list)
    captures: list[int] = field(default_factory=list)
    reserves: list[tuple[int, ReserveEvent]] = field(default_factory=list)


def timelines(run: AnalysedRun) -> tuple[list[Timeline], int]:
    """One timeline a used slot, for the worker that had it worst there; and slots left out.

    Those in which a site had it worst come first, then the largest.
    """
    workers = run.whole.workers
    weights = {slot: max(_weight(w, slot) for w in workers) for slot in _slots(workers)}
    slots = sorted(slot for slot, (_, _, largest) in weights.items() if largest)
    ranked = sorted(slots, key=weights.__getitem__, reverse=True)
    chosen = sorted(ranked[:MOST_SLOTS])
    return [_timeline(workers, slot) for slot in chosen], len(slots) - len(chosen)


def _slots(workers: Iterable[Worker]) -> set[Slot]:
    return {slot for worker in workers for slot in worker.slots()}


def _weight(worker: Worker, slot: Slot) -> tuple[int, int, int]:
    """How bad it was for a worker in a slot: the outcome, the request of it, the most bytes."""
    uses = [use for (_, s), use in worker.sites.items() if s == slot]
    harm = max((use.harm for use in uses), default=(0, 0))
    asked = max((use.largest for use in uses), default=0)
    return *harm, max(asked, worker.arena_now(slot))


def _timeline(workers: Sequence[Worker], slot: Slot) -> Timeline:
    worker = max(workers, key=lambda v: _weight(v, slot))
    timeline = Timeline(slot, rank_label(worker.ranks, worker.world), len(workers) - 1)
    stretches = _stretches(worker, slot)
    timeline.events = sum(len(s.events) for s in stretches)
    for stretch, band in zip(stretches, _bands(stretches), strict=True):
        timeline.bands.append(band)
        _place(timeline, worker, stretch, band)
    _finish_arena(timeline)
    return timeline


def _stretches(worker: Worker, slot: Slot) -> list[_Stretch]:
    found = [_Stretch("init")]
    for record in worker.process.records:
        if isinstance(record, PhaseChange):
            _enter(found, record.phase)
        elif type(record) in COLLECTED:
            _collect(found[-1], record, slot)
    return [s for s in found if s.events or s.locks or s.phase not in SHORT_LIVED]


def _enter(found: list[_Stretch], phase: str) -> None:
    """A new stretch; one that held nothing and means nothing is taken over."""
    last = found[-1]
    empty = not (last.events or last.locks or last.captures or last.reserves)
    if len(found) >= MOST_BANDS:
        last.phase = "later"
    elif empty and last.phase in SHORT_LIVED:
        last.phase = phase
    elif len(found) > 1 and empty and last.phase == phase:
        return
    else:
        found.append(_Stretch(phase))


def _collect(stretch: _Stretch, record: Record, slot: Slot) -> None:
    if isinstance(record, (Request, Growth, Failure)):
        if record.slot == slot:
            _append(stretch.events, record)
    elif isinstance(record, Lock):
        stretch.locks.append((len(stretch.events), record))
    elif isinstance(record, Capture) and record.event == "end" and not record.throwaway:
        stretch.captures.append(len(stretch.events))
    elif isinstance(record, ReserveEvent) and slot in record.slots:
        stretch.reserves.append((len(stretch.events), record))


def _append(
    events: list[Request | Growth | Failure], record: Request | Growth | Failure
) -> None:
    """A refusal stands for the request that it refuses, recorded just before it."""
    last = events[-1] if events else None
    if isinstance(record, Failure) and isinstance(last, Request) and last.site == record.site:
        events.pop()
    events.append(record)


def _bands(stretches: Sequence[_Stretch]) -> list[Band]:
    """Places on an axis from 0 to 1: room for each label, the rest shared by events."""
    bins = [min(len(s.events), BINS) for s in stretches]
    labels = [LABEL * (len(s.phase) + 3) for s in stretches]
    scale = min(1.0, MOST_LABELS / (sum(labels) or 1))
    rest = 1 - scale * sum(labels)
    shares = [b / sum(bins) if any(bins) else 1 / len(bins) for b in bins]
    widths = [scale * own + rest * share for own, share in zip(labels, shares, strict=True)]
    ends = list(accumulate(widths))
    return [
        Band(stretch.phase, end - width, end)
        for stretch, width, end in zip(stretches, widths, ends, strict=True)
    ]


def _place(timeline: Timeline, worker: Worker, stretch: _Stretch, band: Band) -> None:
    count = len(stretch.events)
    bins = min(count, BINS)
    best: dict[tuple[int, Kind], tuple[Request | Growth | Failure, int]] = {}
    for index, event in enumerate(stretch.events):
        at = index * bins // count
        kind = _kind(event, worker)
        size = _bytes(event)
        if (at, kind) not in best or best[at, kind][1] < size:
            best[at, kind] = (event, size)
    for (at, kind), (event, size) in sorted(best.items(), key=lambda item: item[0]):
        x = _at(band, (at + 0.5) / bins)
        point = Point(x, size, _hover(event, worker, kind))
        timeline.points.setdefault(kind, []).append(point)
        if isinstance(event, Growth):
            timeline.arena.append(point)
    _mark(timeline, stretch, band, count)


def _kind(event: Request | Growth | Failure, worker: Worker) -> Kind:
    if isinstance(event, Failure):
        return "refused"
    if isinstance(event, Growth):
        return "reserve" if event.reserve else "growth"
    return KINDS[worker.seen(event).outcome]


def _bytes(event: Request | Growth | Failure) -> int:
    if isinstance(event, Request):
        return event.bytes
    return event.after if isinstance(event, Growth) else event.required or 0


def _hover(event: Request | Growth | Failure, worker: Worker, kind: Kind) -> str:
    site = worker.callers.get(event.site or 0)
    first = worker.process.header.ns
    lines = [f"<b>{kind} {human(_bytes(event))}</b>"]
    if site is not None:
        lines.append(figure_text(site.caller, 72))
    if isinstance(event, Growth):
        lines.append(f"arena {human(event.before)} → {human(event.after)}")
    elif not isinstance(event, Failure):
        lines.append(f"arena {human(event.arena)}")
    when = [event.phase, step_text(event.step)]
    lines.append(figure_text(", ".join(part for part in when if part), 110))
    if first and event.ns:
        lines.append(f"{(event.ns - first) / 1e9:,.2f} s after start")
    return "<br>".join(lines)


def _mark(timeline: Timeline, stretch: _Stretch, band: Band, count: int) -> None:
    for before, lock in stretch.locks:
        sizes = dict(zip(lock.slots, lock.sizes, strict=True))
        size = sizes.get(timeline.slot)
        text = lock.event if size is None else f"{lock.event} {human(size)}"
        timeline.marks.append(Mark(_at(band, before / count if count else 0.5), text))
    if stretch.captures:
        at = stretch.captures[-1]
        graphs = f"{plural(len(stretch.captures), 'graph')} captured"
        timeline.marks.append(Mark(_at(band, at / count if count else 0.5), graphs))
    for _, event in stretch.reserves:
        text = f"reserve {event.event}"
        timeline.marks.append(Mark(_at(band, 0.02), text))


def _at(band: Band, part: float) -> float:
    return round(band.start + (band.end - band.start) * part, 5)


def _finish_arena(timeline: Timeline) -> None:
    """The arena is a staircase: nothing before the first growth, the last size to the end."""
    steps = timeline.arena
    if not timeline.bands:
        return
    if not steps or steps[0].x > 0:
        steps.insert(0, Point(0.0, 0, "no arena yet"))
    last = steps[-1]
    steps.append(Point(1.0, last.bytes, f"arena {human(last.bytes)}"))
