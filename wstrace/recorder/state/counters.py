"""The hot counters, and the tallies that they are folded into.

`hot` is what the hot path looks every request up in. Whoever wants the next request of each
key to be looked at again forgets it; the calls so far go into the tallies, by phase.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

from wstrace.recorder.state.steps import StepTracker
from wstrace.trace.records import Count, Counts, Phase, Slot

if TYPE_CHECKING:
    from wstrace.slicer.live.way import Check, Way


class Table(Protocol):
    """What the look-up in C finds entries in: those of `hot` whose key has plain integers."""

    def put(
        self, code: CodeType, place: int, size: int, slot: int | None, entry: Entry, /
    ) -> None:
        """Find `entry` from now on."""

    def settle(self) -> None:
        """Add the calls that were counted to the entries."""

    def clear(self) -> None:
        """Settle, and find nothing."""


COUNTS_EVERY_NS = 1_000_000_000
HotKey = tuple[Any, ...]
CLOSE_LOOKS = 500
"""Requests of a new key whose layer is looked at, far more than a model has layers."""
ASK = object()
"""No call is this: a way that the hot path cannot compare by itself."""


@dataclass(slots=True)
class Entry:
    """What the hot path keeps for one key and way: calls so far, and where they belong.

    `on_way` tells whether a frame makes its request on the entry's way; None where no other
    can lead to the key. `caller`, `place`, `outer` and `outer_place` are the calls of a way of
    one or two of them, which the hot path compares itself: a call of `on_way` costs as much
    as all of that. `caller` is `ASK` where `on_way` has to be asked, None where no way counts.
    `other` is the entry of the same key on another way: another caller, or another class of
    `self`. `left`: how many more requests of `way` are looked at closely.
    """

    calls: int
    site: int
    slot: Slot
    bytes: int
    on_way: Check | None = None
    other: Entry | None = None
    caller: object = None
    place: int = 0
    outer: object = None
    outer_place: int = 0
    way: Way | None = None
    left: int = 0

    def follow(self, way: Way, close: int = CLOSE_LOOKS) -> None:
        """Count only requests on this way, the first `close` of them also by what the layer
        holds: every layer of a model asks within a few steps, and to look costs much more."""
        self.way, self.left = way, close if way.values else 0
        if way.values and not close:
            self.way = way = replace(way, values=())
        self.on_way = way.check()
        self.caller = self.outer = None
        if self.on_way is None:
            return
        if way.kinds or way.values or not 1 <= len(way.above) <= 2:
            self.caller = ASK
            return
        self.caller, self.place = way.above[0]
        if len(way.above) > 1:
            self.outer, self.outer_place = way.above[1]

    def taken(self, frame: FrameType) -> Entry | None:
        """The entry of the way on which `frame` makes its request; None for a new way."""
        entry: Entry | None = self
        while entry is not None and entry.on_way is not None and not entry.on_way(frame):
            entry = entry.other
        if entry is not None and entry.left and entry.way is not None:
            entry.left -= 1
            if not entry.left:
                entry.follow(entry.way, close=0)
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


class Counters:
    """Calls of this process, by key and way while hot, by (site, slot, phase) after.

    `lock` is held on the novel path: one request at a time becomes known. `table` finds the
    same entries as `hot`, None where the look-up is Python's.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.hot: dict[HotKey, Entry] = {}
        self.table: Table | None = None
        self.tallies: dict[tuple[int, Slot, Phase], Tally] = {}
        self.flushed_at = 0
        self._ways: dict[HotKey, list[Way]] = {}
        self._codes: dict[int, CodeType] = {}
        self._other_ways = 0
        self._beyond = False
        self._phase: Phase = "init"  # the one that the hot entries were counted in
        self._real_steps_written = 0

    def remember(self, key: HotKey, code: CodeType, entry: Entry) -> None:
        """Let the hot path count `entry`, beside those of the same key on other ways.

        `code` is kept alive, so that no other code object can get its id, which is in the key.
        """
        self._codes[key[0]] = code
        entry.other = self.hot.get(key)
        self.hot[key] = entry
        if self.table is not None:
            _, place, size, slot = key
            self.table.put(code, place, size, slot, entry)
        self._other_ways += entry.other is not None

    def remember_beyond(self, key: HotKey, code: CodeType, entry: Entry) -> None:
        """Past the cap: let `entry` count each request of its call and slot that is no larger.

        It had been answered at that size, so a smaller one is no new maximum of its site.
        """
        self._codes[key[0]] = code
        known = self.hot.setdefault(_any_size(key), entry)
        known.bytes = max(known.bytes, entry.bytes)
        self._beyond = True

    def count_beyond(self, key: HotKey | None) -> bool:
        """Count a request past the cap; False where it has to be looked at."""
        if not self._beyond or key is None:
            return False
        entry = self.hot.get(_any_size(key))
        if entry is None or type(key[2]) is not int or key[2] > entry.bytes:
            return False
        entry.calls += 1
        return True

    def holds(self) -> int:
        """Keys and ways that are hot."""
        return len(self.hot) + self._other_ways

    def written_ways(self, mark: HotKey) -> list[Way]:
        """The ways on which this key (with its phase and capture) was written; add to it."""
        return self._ways.setdefault(mark, [])

    def entries(self) -> list[Entry]:
        """The entries of all keys, one for each way."""
        found: list[Entry] = []
        if self.table is not None:
            self.table.settle()
        for first in list(self.hot.values()):
            entry: Entry | None = first
            while entry is not None:
                found.append(entry)
                entry = entry.other
        return found

    def forget(self, phase: Phase) -> None:
        """Fold the hot counters into the tallies, so that every key is novel again.

        What is counted from now on is counted in `phase`.
        """
        with self.lock:
            entries = self.entries()
            self._drop()
        for entry in entries:
            self._fold(entry)
        self._phase = phase

    def forked(self) -> None:
        """This process is a forked child: it counts for itself, and no other thread lives."""
        self.lock = threading.RLock()
        self._drop()
        self.tallies.clear()
        self._ways.clear()

    def _drop(self) -> None:
        self.hot.clear()
        self._other_ways = 0
        self._beyond = False
        if self.table is not None:
            self.table.clear()

    def tally(self, site: int, slot: Slot, phase: Phase) -> Tally:
        """The tally of a site and slot in a phase."""
        return self.tallies.setdefault((site, slot, phase), Tally())

    def _fold(self, entry: Entry) -> None:
        tally = self.tally(entry.site, entry.slot, self._phase)
        tally.calls += entry.calls
        tally.max_bytes = max(tally.max_bytes, entry.bytes)
        entry.calls = 0

    def flush(self, steps: StepTracker) -> Counts | None:
        """The tallies that changed since the last flush as a record; None where none did."""
        self.flushed_at = time.monotonic_ns()
        for entry in self.entries():
            self._fold(entry)
        changed = []
        for (site, slot, phase), tally in self.tallies.items():
            now = (tally.calls, tally.max_bytes)
            if tally.written != now:
                tally.written = now
                changed.append(Count(site, slot, phase, *now))
        if not changed and steps.real == self._real_steps_written:
            return None
        self._real_steps_written = steps.real
        return Counts(
            step=steps.index,
            steps_real=steps.real,
            max_tokens=steps.max_tokens,
            max_reqs=steps.max_reqs,
            max_computed=steps.max_computed,
            max_continued=steps.max_continued,
            counts=changed,
        )


def _any_size(key: HotKey) -> HotKey:
    """The key of a call and slot, whatever bytes it asks for; no request has it."""
    return (key[0], key[1], None, key[3])
