"""Before and after a lock: what each request of a process was, "escaped" or not.

No other place decides it.
vLLM locks its workspace when warm-up is done (`WorkspaceManager.lock`, 0.13 on). Elastic EP
unlocks it, warms up again and locks it anew, so there may be several locks: an *epoch* is the
time from one of them to the next unlock or lock, else to the end. Where nothing locks (eager
mode, the V2 model runner) the epoch begins with serving. "Before" an epoch is all that came
earlier in time: a request made after an unlock is before the next lock, and not before the
last one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from wstrace.trace.collapsing import Repeats
from wstrace.trace.records import Growth, Lock, Phase, PhaseChange, Record, Request, Slot

Where = tuple[Hashable, Slot]
"""A site, however the reader names it, in a slot."""
Outcome = Literal["before", "warmed", "latent", "outgrew", "escaped"]
WORSE: Final[dict[Outcome, int]] = {
    "before": 0,  # made while unlocked, in warm-up: it makes room
    "warmed": 1,  # no larger than what the site asked for before the epoch
    "latent": 2,  # larger than that, and fitted in the arena that other sites had made
    "outgrew": 3,  # larger than the arena, which nothing locked: it was replaced in serving
    "escaped": 4,  # larger than the locked arena: refused, or survived under grow
}
AFTER_LOCK: Final[frozenset[Phase]] = frozenset(("post-lock-warmup", "serving"))


@dataclass(frozen=True)
class Epoch:
    """The time from a lock on; `lock` is None where serving began without one.

    `arenas`: bytes by slot when it began. `before`: the largest request of each site and slot
    made earlier, in bytes.
    """

    lock: Lock | None
    arenas: dict[Slot, int]
    before: dict[Where, int]


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A request and what it was. `epoch` counts from 1; one "before" is before its epoch.

    `arena`: bytes of its slot when that epoch began (so far, where it has not). `repeats`:
    where the request stands for several that were alike.
    """

    request: Request
    epoch: int
    outcome: Outcome
    arena: int
    repeats: Repeats | None = None

    @property
    def times(self) -> int:
        """How many requests it stands for."""
        return self.repeats.times if self.repeats else 1

    @property
    def last_step(self) -> int:
        """The highest step of them, -1 where none has one."""
        if self.repeats:
            return self.repeats.last_step
        return self.request.step.index if self.request.step else -1

    @property
    def bytes(self) -> int:
        """What was asked for."""
        return self.request.bytes


class LockEpochs:
    """The epochs of one process, followed record by record, in the order of its file."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.arenas: dict[Slot, int] = {}
        self._largest: dict[Where, int] = {}
        self._open = False

    def take(self, record: Record) -> None:
        """Follow a record that is no request; call it for requests through `see`."""
        if isinstance(record, Lock):
            self.arenas.update(zip(record.slots, record.sizes, strict=True))
            self._open = False
            if record.event == "lock":
                self._begin(record, dict(zip(record.slots, record.sizes, strict=True)))
        elif isinstance(record, (Growth, PhaseChange)):
            self._serve(record.phase)
            if isinstance(record, Growth):
                self.arenas[record.slot] = record.after

    def see(self, site: Hashable, request: Request, repeats: Repeats | None = None) -> Seen:
        """What a request of `site` was; it makes room for those after it."""
        self._serve(request.phase)
        where = site, request.slot
        number = len(self.epochs) + (not self._open)
        epoch = self.epochs[-1] if self._open else None
        arenas = self.arenas if epoch is None else epoch.arenas
        arena = arenas.get(request.slot, 0)
        outcome = "before" if epoch is None else _outcome(request, arena, epoch.before, where)
        self._largest[where] = max(request.bytes, self._largest.get(where, 0))
        return Seen(request, number, outcome, arena, repeats)

    def _serve(self, phase: Phase) -> None:
        """Serving that nothing locked is an epoch too."""
        if not self._open and phase in AFTER_LOCK:
            self._begin(None, dict(self.arenas))

    def _begin(self, lock: Lock | None, arenas: dict[Slot, int]) -> None:
        self.epochs.append(Epoch(lock, arenas, dict(self._largest)))
        self._open = True


def _outcome(request: Request, arena: int, before: dict[Where, int], where: Where) -> Outcome:
    """At the exact byte: a request as large as the arena fits in it."""
    if request.bytes > arena:
        return "escaped" if request.locked else "outgrew"
    return "latent" if request.bytes > before.get(where, 0) else "warmed"
