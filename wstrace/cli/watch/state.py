"""What `wstrace watch` knows: a few numbers a process, whatever the length of its file."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wstrace.report.finding_text import slot_text
from wstrace.runs.lock_epochs import LockEpochs
from wstrace.runs.worker import group_sizes, rank_label
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import (
    Counts,
    End,
    Failure,
    Growth,
    Header,
    Lock,
    NearLimit,
    Phase,
    PhaseChange,
    Ranks,
    Record,
    Request,
    ReserveEvent,
    Site,
    Slot,
    WorkerInit,
)
from wstrace.units import human

MOST_EVENTS: Final = 200


@dataclass
class SlotState:
    """One slot now: arena, arena at the lock (None while unlocked), largest request."""

    arena: int = 0
    locked_at: int | None = None
    asked: int = 0


@dataclass
class ProcessState:
    """One process now. `escapes` outgrew the lock, `refused` were turned down by vLLM."""

    header: Header | None = None
    worker: WorkerInit | None = None
    phase: Phase = "init"
    step: int = 0
    slots: dict[Slot, SlotState] = field(default_factory=dict)
    sites: dict[int, str] = field(default_factory=dict)
    epochs: LockEpochs = field(default_factory=LockEpochs)
    growths: int = 0
    escapes: int = 0
    refused: int = 0
    reserve: str = ""
    ended: bool = False
    world: Ranks | None = None

    @property
    def name(self) -> str:
        """`tp1`, `dp0 pp1 tp0`; the role where it is no worker."""
        if self.worker is None:
            return self.header.role or str(self.header.pid) if self.header else "?"
        return rank_label(self.worker.ranks, self.world)

    def slot(self, slot: Slot) -> SlotState:
        """The state of a slot, made on first sight."""
        return self.slots.setdefault(slot, SlotState())


@dataclass
class RunState:
    """All processes of the run, and its latest events in words."""

    processes: dict[Path, ProcessState] = field(default_factory=dict)
    events: deque[tuple[int, str, str]] = field(
        default_factory=lambda: deque(maxlen=MOST_EVENTS)
    )
    told: int = 0

    def apply(self, path: Path, record: Record) -> None:
        """Take in one new record of the file `path`."""
        state = self.processes.setdefault(path, ProcessState())
        text = _apply(state, record)
        if isinstance(record, WorkerInit):
            self._regroup(state)
        if text:
            self.told += 1
            run = state.header.run if state.header else ""
            self.events.append((self.told, run, f"{state.name}: {text}"))

    def _regroup(self, joined: ProcessState) -> None:
        """A worker came: how its run's workers are called depends on all of them."""
        states = self.of_run(joined.header.run if joined.header else None)
        inits = [s.worker for s in states if s.worker is not None]
        world = group_sizes([i.world for i in inits], [i.ranks for i in inits])
        for state in states:
            state.world = world

    def of_run(self, run: str | None) -> list[ProcessState]:
        """The processes of `run`, workers in order of rank, before the others."""
        chosen = [p for p in self.processes.values() if p.header and p.header.run == run]
        return sorted(chosen, key=_order)

    def news(self, since: int, run: str | None) -> list[str]:
        """Events of `run` after the first `since` of the folder, as far as they are kept."""
        return [text for number, of, text in self.events if number > since and of == run]


def _order(state: ProcessState) -> tuple[bool, int, str]:
    rank = state.worker.ranks.rank if state.worker else None
    return state.worker is None, rank or 0, state.name


def _apply(state: ProcessState, record: Record) -> str:
    """Update `state`; a sentence where a person would want to know."""
    state.epochs.take(record)
    match record:
        case Request():
            return _request(state, record)
        case Growth():
            return _growth(state, record)
        case Failure():
            return _failure(state, record)
        case Lock():
            return _lock(state, record)
        case NearLimit():
            needs = f"needs {human(record.bytes)} of {human(record.arena)}"
            return f"near its limit: {redact_text(record.site)} {needs}"
        case ReserveEvent():
            state.reserve = record.event
            return f"reserve {record.event}" + (f": {record.why}" if record.why else "")
    _note(state, record)
    return ""


def _note(state: ProcessState, record: Record) -> None:
    """Records that change the picture and are no event."""
    match record:
        case Header():
            state.header = record
        case WorkerInit():
            state.worker = record
        case Site():
            state.sites[record.id] = redact_text(record.caller)
        case PhaseChange():
            state.phase, state.step = record.phase, max(state.step, record.step)
        case Counts():
            state.step = max(state.step, record.step)
        case End():
            state.ended = True


def _request(state: ProcessState, request: Request) -> str:
    slot = state.slot(request.slot)
    slot.asked = max(slot.asked, request.bytes)
    _at_step(state, request)
    seen = state.epochs.see(request.site, request)
    if seen.outcome != "escaped":
        return ""
    state.escapes += 1
    return (
        f"escape: {state.sites.get(request.site, '?')} asked {human(request.bytes)}, "
        f"locked at {human(seen.arena)}{_where(request.slot)}"
    )


def _growth(state: ProcessState, growth: Growth) -> str:
    state.slot(growth.slot).arena = growth.after
    state.growths += 1
    _at_step(state, growth)
    what = "reserve" if growth.reserve else "growth"
    return f"{what}: {human(growth.before)} to {human(growth.after)}{_where(growth.slot)}"


def _failure(state: ProcessState, failure: Failure) -> str:
    state.refused += not failure.survived
    if failure.kind in ("persistent", "layer"):
        state.escapes += 1
    _at_step(state, failure)
    site = state.sites.get(failure.site or 0, failure.key or "?")
    return f"refused: {site}" + (f" {human(failure.required)}" if failure.required else "")


def _lock(state: ProcessState, lock: Lock) -> str:
    for slot, size in zip(lock.slots, lock.sizes, strict=False):
        known = state.slot(slot)
        known.arena = size
        known.locked_at = size if lock.event == "lock" else None
    sizes = ", ".join(human(size) for size in lock.sizes[:4])
    return f"{lock.event} at {sizes}" if sizes else lock.event


def _at_step(state: ProcessState, record: Request | Growth | Failure) -> None:
    state.phase = record.phase
    if record.step is not None:
        state.step = max(state.step, record.step.index)


def _where(slot: Slot) -> str:
    text = slot_text(slot)
    return f" ({text})" if text else ""
