"""A large file's requests, those that differ in nothing but time and step kept once.

A recorder writes a request when it is new, so one process writes few that are alike; a folder
of many processes, restarts and phases may hold millions. What an analysis reads of each is the
same but for its `ns` and its step's number. Both are cut out of the line's bytes; the rest of
the line is the key, and a line whose key is known is counted without being decoded.

That the two numbers mean what they seem to is asked of the decoder for every new key
(`_new`): the first line of a key is decoded in full, and lines of one key differ in two
numbers of JSON only. Alike are requests between two records that change what a request means
(`_TURNS`) and of one phase, so that each outcome is that of the first. One after such a
record, or in another file of the run, is a record of its own; it is made from the first one
with these two numbers, and not decoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from wstrace.trace.decoding import record_decoder
from wstrace.trace.records import (
    Growth,
    Lock,
    Manager,
    PhaseChange,
    Record,
    Request,
    Site,
    Slot,
)
from wstrace.trace.shared_parts import STATEMENTS, UNDECODABLE, SharedParts
from wstrace.trace.totals import Totals

MOST_DISTINCT: Final = 100_000
"""Different requests kept of a file. A recorder writes 20,000 of a phase (WSTRACE_MAX_KEYS)."""
_TURNS: Final[frozenset[type[Record]]] = frozenset((Growth, Lock, Manager, PhaseChange, Site))
_START: Final = b'{"t":"request","ns":'
_STEP: Final = b'"step":{"index":'
_DIGITS: Final = 18
"""More digits may be no number that a record can hold."""
_MOST_ENDS: Final = 32
_MOST_KEPT: Final = 128 << 20
"""Bytes of keys that one file leaves to the next; of a file `MOST_DISTINCT` lines are known."""
_NAMES: Final = (b'"ns"', b'"index"', b'"step"', b"\\u")
"""What may name one of the two numbers another time; an escape may spell any name."""
_decode = record_decoder()
Odd = Callable[[int, bytes, Exception], None]
"""Told of a line that is no record: its number from 1, its bytes, and why."""


class Repeats(msgspec.Struct, gc=False):
    """Of a request that stands for several: how many, and the highest step of them."""

    times: int
    last_step: int
    serves: bool
    """Whether a step of it is a real one in serving."""


class _Known(msgspec.Struct, gc=False):
    """The lines of one key: the first of them as it was read, and those that are alike.
    `turn`: since when these are (`RunLines.next_turn`)."""

    record: Request
    repeats: Repeats
    turn: int


class _End:
    """A line's end, from its statements on, and the requests known of the lines that have it.
    It is compared, and no hash is made of its kilobytes."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.names = any(name in text for name in _NAMES)
        self.known: dict[bytes, _Known] = {}


class RunLines(SharedParts):
    """What the files of a run have in common: parts of their requests, and whole lines."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = _End(b"\n")
        self.ends = [self.whole]
        self._bytes = 0
        self._turns = 0

    def next_turn(self) -> int:
        """From here on nothing is alike to what came before."""
        self._turns += 1
        return self._turns

    def begin(self) -> int:
        """A file begins; as a turn. Lines stay known while they are few."""
        if self._bytes > _MOST_KEPT:
            self.whole.known.clear()
            self.ends = [self.whole]
            self._bytes = 0
        return self.next_turn()

    def know(self, end: _End, key: bytes, known: _Known) -> None:
        """The first line of its key was read."""
        end.known[key] = known
        self._bytes += len(key)


class Collapsing:
    """The records of one file: `records` in order, `repeats` by the id of a request.

    `lines`: how many there were. `beyond`: how many requests came after `most` different ones
    were kept. Of these the largest of each site, slot and phase is kept, locked and not.
    """

    def __init__(self, lines: RunLines, odd: Odd, most: int = MOST_DISTINCT) -> None:
        self.records: list[Record] = []
        self.repeats: dict[int, Repeats] = {}
        self.totals = Totals()
        self.beyond = 0
        self.lines = 0
        self._known = lines
        self._turn = lines.begin()
        self._odd = odd
        self._most = most
        self._phase = ""
        self._largest: dict[tuple[int, Slot, bool], int] = {}

    def read(self, lines: Iterable[bytes], first: int = 2) -> None:
        """Take the lines of a file in order, all but the header's; `first` is the number of
        the first one."""
        whole, again = self._known.whole, self._again
        end = whole
        text, known, length = end.text, end.known, len(end.text)
        number = first - 1
        for number, line in enumerate(lines, first):
            if not line.startswith(_START):
                self._take(number, line)
                continue
            comma = line.find(b",", 20)
            at = line.find(_STEP, comma) + 16
            if at > 15:
                after = line.find(b",", at)
            else:  # made in no step
                at = after = comma
            if end is whole or not line.endswith(text):
                end = self._end(line, after)
                text, known, length = end.text, end.known, len(end.text)
            left = len(line) - length
            # Where the end reaches over `after`, nothing is behind the step's name here, and no
            # key is so: one that is known goes on with a comma, and an end begins with none.
            alike = known.get(line[comma:at] + line[after:left])
            if alike is None or not again(alike, line[20:comma], line[at:after]):
                self._new(number, line, end, (comma, at, after, left))
        self.lines = number - 1
        self.repeats = {key: many for key, many in self.repeats.items() if many.times > 1}

    def _again(self, known: _Known, ns: bytes, index: bytes) -> bool:
        """One more line of a key, of this time and step; False where these are no plain
        numbers."""
        if not _numbers(ns, index) or bool(index) != (known.record.step is not None):
            return False
        if known.turn == self._turn:
            self._count(known.repeats, ns, index)
            return True
        record = _another(known.record, ns, index)
        if self._keep(record):
            known.repeats, known.turn = self.repeats[id(record)], self._turn
        return True

    def _count(self, alike: Repeats, ns: bytes, index: bytes) -> None:
        """One more that is like those."""
        totals = self.totals
        alike.times += 1
        totals.records += 1
        time = int(ns)
        if time >= totals.newest:
            totals.newest = time
        else:
            totals.at(time)
        if index:
            step = int(index)
            if step > alike.last_step:
                alike.last_step = step
            if step > totals.furthest:
                totals.furthest, totals.furthest_ns = step, time
            else:
                totals.reach(step, time)
            if alike.serves:
                totals.served.add(step)

    def _end(self, line: bytes, after: int) -> _End:
        """The end of the line: a known one, or a new one from its statements on."""
        ends = self._known.ends
        for seen in ends[1:]:
            if line.endswith(seen.text) and len(line) - len(seen.text) >= after:
                return seen
        found = line.find(STATEMENTS, after)
        if found < 0 or len(ends) > _MOST_ENDS or not line.endswith(b"\n"):
            return ends[0]
        ends.append(_End(line[found:]))
        return ends[-1]

    def _take(self, number: int, line: bytes) -> Record | None:
        """A line that is read in full; None where it is no record."""
        try:
            record = self._known.record(line)
        except UNDECODABLE as error:
            self._odd(number, line, error)
            return None
        return record if self._keep(record) else None

    def _keep(self, record: Record) -> bool:
        """One record more; False where it is beyond those that are kept."""
        self.totals.take(record)
        if type(record) is Request:
            self._enter(record)
            if len(self.repeats) >= self._most:
                self._beyond(record)
                return False
            self.repeats[id(record)] = _one(record)
        elif type(record) in _TURNS:
            self._forget()
        self.records.append(record)
        return True

    def _new(
        self, number: int, line: bytes, end: _End, cuts: tuple[int, int, int, int]
    ) -> None:
        """The first line of its key; the next one is only counted, if it may be."""
        record = self._take(number, line)
        comma, at, after, left = cuts
        ns, index = line[20:comma], line[at:after]
        if type(record) is not Request or left < after or not _numbers(ns, index):
            return
        if not _are(record, int(ns), index):
            return
        if _once(line, end, cuts) or _means(line, ns, index):
            known = _Known(record, self.repeats[id(record)], self._turn)
            self._known.know(end, line[comma:at] + line[after:left], known)

    def _enter(self, record: Request) -> None:
        """The first request of a phase may begin an epoch (`wstrace.runs.lock_epochs`)."""
        if record.phase != self._phase:
            self._phase = record.phase
            self._forget()

    def _forget(self) -> None:
        """What comes now is not like what was, even where its bytes are."""
        self._turn = self._known.next_turn()
        self._largest.clear()

    def _beyond(self, record: Request) -> None:
        """One request more than are kept: it counts, and stays if it is its site's largest."""
        self.beyond += 1
        where = record.site, record.slot, record.locked
        place = self._largest.setdefault(where, len(self.records))
        if place == len(self.records):
            self.repeats[id(record)] = _one(record)
            self.records.append(record)
            return
        held = self.records[place]
        assert isinstance(held, Request)
        repeats = self.repeats[id(held)]
        repeats.times += 1
        repeats.last_step = max(repeats.last_step, _one(record).last_step)
        if record.bytes > held.bytes:
            del self.repeats[id(held)]
            self.records[place] = record
            self.repeats[id(record)] = repeats


def _another(first: Any, ns: bytes, index: bytes) -> Request:
    """The record of another line of the key, of this time and step."""
    record: Request = first.__copy__()  # copy.copy() asks more and does the same
    record.ns = int(ns)
    if index:
        record.step = first.step.__copy__()
        record.step.index = int(index)
    return record


def _one(record: Request) -> Repeats:
    step = record.step
    if step is None:
        return Repeats(1, -1, False)
    return Repeats(1, step.index, step.kind == "real" and record.phase == "serving")


def _numbers(ns: bytes, index: bytes) -> bool:
    """Whether the bytes are numbers of JSON, and no large ones; the second may be missing."""
    return (
        ns.isdigit()
        and (index.isdigit() or not index)
        and ns[0] > 48
        and (index[:1] != b"0" or len(index) == 1)
        and len(ns) <= _DIGITS
        and len(index) <= _DIGITS
    )


def _once(line: bytes, end: _End, cuts: tuple[int, int, int, int]) -> bool:
    """Whether nothing else in the line has the two numbers' names: then these are they."""
    comma, at, after, left = cuts
    if end.names or any(line.find(name, after, left) >= 0 for name in _NAMES):
        return False
    before = line[comma:at]
    counts = [before.count(name) for name in _NAMES]
    return counts == ([0, 1, 1, 0] if at > comma else [0, 0, 0, 0])


def _means(line: bytes, ns: bytes, index: bytes) -> bool:
    """Whether another time and step in their places would be the record's as well."""
    other, later = b"%d" % (int(ns) + 1), b"%d" % (int(index) + 1) if index else b""
    comma = len(_START) + len(ns)
    at = line.find(_STEP, comma) + len(_STEP)
    changed = _START + other + line[comma:]
    if index:
        changed = _START + other + line[comma:at] + later + line[at + len(index) :]
    try:
        found = _decode(changed)
    except UNDECODABLE:
        return False
    return isinstance(found, Request) and _are(found, int(ns) + 1, later)


def _are(record: Request, ns: int, index: bytes) -> bool:
    step = record.step
    if step is None:
        return record.ns == ns and not index
    return record.ns == ns and bool(index) and step.index == int(index)
