"""What is counted over all records of a file, also over those that are kept once for many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wstrace.trace.records import Counts, Record, Request

BACK: Final = 2 * 10**9
"""Nanoseconds by which a record may be older than one before it: two threads stamp theirs,
and the later stamp may be written first."""
_BITS: Final = 1024


class Steps:
    """A set of step numbers, most of them one more than the one before: a bit each, at most.

    Of the newest run only its ends are kept: `newest` is the last of it.
    """

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._first = 0
        self.newest = -1

    def add(self, number: int) -> None:
        """Requests of one step follow each other, and steps do."""
        if number == self.newest + 1:
            self.newest = number
        elif not self._first <= number <= self.newest:
            self._keep()
            self._first = self.newest = number

    def _keep(self) -> None:
        for block in range(self._first // _BITS, self.newest // _BITS + 1):
            first = max(self._first - block * _BITS, 0)
            last = min(self.newest - block * _BITS, _BITS - 1)
            run = (1 << (last + 1)) - (1 << first)
            self._bits[block] = self._bits.get(block, 0) | run

    def __len__(self) -> int:
        self._keep()
        return sum(bits.bit_count() for bits in self._bits.values())


class Totals:
    """Numbers over a file's records, its header apart.

    `newest`: the latest time, ns of the process's clock. `in_order`: no record is older than
    one before it by more than `BACK`. `furthest`: the highest step that a record names, -1
    where none does; `furthest_ns`: the latest time of a record of it. `served`: the real steps
    in which a request was made in serving.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = 0
        self.newest = 0
        self.in_order = True
        self.furthest = -1
        self.furthest_ns = 0
        self.served = Steps()
        for record in records:
            self.take(record)

    def take(self, record: Record) -> None:
        """Count one record."""
        self.records += 1
        self.at(record.ns)
        if type(record) is Request:
            step = record.step
            if step is not None:
                self.reach(step.index, record.ns)
                if step.kind == "real" and record.phase == "serving":
                    self.served.add(step.index)
        elif type(record) is Counts:
            self.reach(record.step, record.ns)

    def at(self, ns: int) -> None:
        """A record was made at `ns`."""
        if ns >= self.newest:
            self.newest = ns
        elif ns < self.newest - BACK:
            self.in_order = False

    def reach(self, step: int, ns: int) -> None:
        """A record of `step` was made at `ns`."""
        if (step, ns) > (self.furthest, self.furthest_ns):
            self.furthest, self.furthest_ns = step, ns
