"""Records that a file lacks, by what its other records say.

The recorder leaves a whole story: each counter has a request as large as its largest, each
arena grows from the size that it had, each request names a site, a manager and a phase that
were written before. Where one of these does not hold, records were taken out of the file or
put elsewhere, and one of them may have been a refusal. What is said here needs no other file
and no vLLM. A file that is cut between two records is a whole one that ends earlier:
`findings.ends` asks for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from wstrace.trace.records import (
    Capture,
    Count,
    Counts,
    Failure,
    Growth,
    Hook,
    Lock,
    Manager,
    Note,
    Ordering,
    Persistent,
    PhaseChange,
    Record,
    Request,
    ReserveEvent,
    Site,
    Slot,
    Truncated,
    View,
)
from wstrace.units import human

if TYPE_CHECKING:
    from wstrace.trace.process_file import ProcessTrace

Asked = dict[tuple[int, Slot, str], int]
"""The largest request in bytes by site, slot and phase."""


def gaps(process: ProcessTrace) -> Iterator[str]:
    """What a worker's file lacks, one reason each; nothing of one that says so itself.

    Asked of files that a recorder wrote: their header names its Python. A forked child's file
    begins in the middle: of it the sites, counters and order are asked.
    """
    if process.worker is None or process.lost or not process.header.python:
        return
    requests = [record for record in process.records if type(record) is Request]
    events = process.events
    if not process.totals.in_order:
        yield "its records are not in the order of their times"
    yield from _sites(requests, events)
    yield from _uncounted(requests, events)
    yield from _unasked(requests, events)
    if not process.header.parent:
        yield from _phases(requests, events)
        yield from _managers(requests, events)
        yield from _locks(process.records)
        yield from _growths(events)
        yield from _captures(requests, events)
        if not process.cut:  # what is cut may be what a site asked
            yield from _idle_sites(requests, events)
        yield from _said_once(process, events)


def _sites(requests: list[Request], events: list[Record]) -> Iterator[str]:
    known = {record.id for record in events if isinstance(record, Site)}
    named: set[int | None] = {request.site for request in requests}
    named |= {r.site for r in events if isinstance(r, Growth | Failure)}
    if named - known - {None}:
        yield "a request names a site that is in no record"


def _idle_sites(requests: list[Request], events: list[Record]) -> Iterator[str]:
    """A site is written when it asks, just before what it asked for; not so past a cap."""
    if _capped(events):
        return
    named: set[int | None] = {request.site for request in requests}
    named |= {r.site for r in events if isinstance(r, Growth | Failure | Persistent | View)}
    named |= {n for r in events if isinstance(r, Ordering) for n in (r.first, r.second)}
    if any(isinstance(r, Site) and r.id not in named for r in events):
        yield "a site asked, and what it asked for is in no record"


def _uncounted(requests: list[Request], events: list[Record]) -> Iterator[str]:
    """The counters of a phase are written before the next one begins."""
    told = [record for record in events if isinstance(record, Counts | Failure)]
    lost = any(isinstance(r, Note) and r.failed_piece == "counts" for r in events)
    ended = {r.ns for r in events if isinstance(r, PhaseChange)}
    if requests and not told and not lost and max(ended, default=0) > requests[0].ns:
        yield "a phase with requests ended, and no counters were written"


def _unasked(requests: list[Request], events: list[Record]) -> Iterator[str]:
    """Counted and not recorded; where a cap was reached the counters are all there is."""
    if _capped(events):
        return
    largest: Asked = {}
    for request in requests:
        key = request.site, request.slot, request.phase
        largest[key] = max(request.bytes, largest.get(key, 0))
    for count in _counts(events):
        if count.max_bytes > largest.get((count.site, count.slot, count.phase), -1):
            size = human(count.max_bytes)
            yield f"its counters have a request of {size} in {count.phase} that is in no record"
            return


def _capped(events: Iterable[Record]) -> bool:
    return any(isinstance(record, Truncated) for record in events)


def _counts(events: Iterable[Record]) -> Iterator[Count]:
    for record in events:
        if isinstance(record, Counts):
            yield from record.counts


def _phases(requests: list[Request], events: list[Record]) -> Iterator[str]:
    entered = {"init", *(r.phase for r in events if isinstance(r, PhaseChange))}
    made = [r.phase for r in (*requests, *(e for e in events if isinstance(e, Growth | Lock)))]
    for phase in made:
        if phase not in entered:
            yield f"a request was made in {phase}, and no record says when that began"
            return


def _managers(requests: list[Request], events: list[Record]) -> Iterator[str]:
    known = {0, *(record.id for record in events if isinstance(record, Manager))}
    named = {request.manager for request in requests}
    named |= {r.manager for r in events if isinstance(r, Growth | Failure | Lock)}
    if named - known:
        yield "a request names a manager that is in no record"


def _locks(records: Iterable[Record]) -> Iterator[str]:
    """A request knows whether its arena was locked; so does the phase that a lock began."""
    last = ""
    locked: dict[int, bool] = {}
    for record in records:
        if isinstance(record, Lock):
            last = record.event
            locked[record.manager] = record.event == "lock"
        elif isinstance(record, PhaseChange) and record.why in ("lock", "unlock"):
            if record.why != last:
                yield f"a phase began by {record.why}, which is in no record"
                return
        elif isinstance(record, Request) and record.locked != locked.get(record.manager, False):
            state = "locked" if record.locked else "unlocked"
            yield f"a request met its arena {state}, and no record says since when"
            return


def _growths(events: Iterable[Record]) -> Iterator[str]:
    arenas: dict[tuple[int, Slot], int] = {}
    for record in events:
        if isinstance(record, Growth):
            before = arenas.get((record.manager, record.slot), 0)
            if record.before != before:
                had, sized = human(record.before), human(before)
                yield f"an arena of {had} grew, and the record before has it at {sized}"
                return
            arenas[record.manager, record.slot] = record.after
        elif isinstance(record, Lock):
            for slot, size in zip(record.slots, record.sizes, strict=True):
                before = arenas.get((record.manager, slot), 0)
                if size != before:
                    met = f"{record.event} met an arena of {human(size)}"
                    yield f"{met}, and its last growth made {human(before)}"
                    return


def _captures(requests: list[Request], events: list[Record]) -> Iterator[str]:
    ended = {record.graph for record in events if isinstance(record, Capture)}
    started = {request.graph for request in requests if request.graph is not None}
    if started - ended and _served(events):
        yield "a request was captured in a graph that is in no record"


def _said_once(process: ProcessTrace, events: list[Record]) -> Iterator[str]:
    if not any(isinstance(record, Hook) for record in events):
        yield "no record says which hooks were set"
    told = any(isinstance(record, ReserveEvent) for record in events)
    grown = any(isinstance(record, Growth) and record.reserve for record in events)
    if not told and (grown or (process.header.reserve and _served(events))):
        yield "no record says what became of the reserve"


def _served(events: Iterable[Record]) -> bool:
    return any(isinstance(r, PhaseChange) and r.phase == "serving" for r in events)
