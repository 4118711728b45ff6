"""Which requests of one slot are ordered, when several CUDA streams make them.

Two streams that ask in one slot get views of the same bytes. That is safe where the second
stream's work waits for the first's. CUDA orders streams by events: work that a stream gets
after it waited for an event runs after all work that another stream had got before it
recorded that event. This is a happens-before relation, and a vector clock holds it: every
stream counts its own marks, an event carries the marks that its stream knew when it was
recorded, and whoever waits for it knows them too. What the host waited for (a synchronised
stream, event or device) every stream knows from then on.

Nothing here looks at a kernel. What cannot be seen stands in docs/findings/WS304.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from wstrace.trace.records import Slot

Clock = dict[int, int]

# Kept on the event: a table of weak references to CUDA events crashed the collector of
# Python 3.12.3 with torch 2.11 on an H200.
KNOWN: Final = "_wstrace_known"
WATCHED_STEPS: Final = 3  # real steps; warm-up and capture before them are watched as well
MOST_WATCHES: Final = 16


@dataclass(frozen=True)
class Asked:
    """A request as far as order needs it: its stream, the mark it set there, its site.

    `stack` is the call stack of the newest request, as far as the caller gave it.
    """

    stream: int
    mark: int
    site: int
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two requests of one slot from two streams, and whether an order was seen."""

    slot: Slot
    first: Asked
    second: Asked
    ordered: bool


@dataclass
class StreamOrder:
    """The happens-before relation of one process; one device, as vLLM's workers have."""

    clocks: dict[int, Clock] = field(default_factory=dict)
    host: Clock = field(default_factory=dict)
    last: dict[tuple[Slot, int], dict[int, Asked]] = field(default_factory=dict)
    own: object = field(default_factory=object)
    """What tells this relation's events from those of a watch before it: marks begin anew."""

    def asked(
        self, slot: Slot, stream: int, site: int, stack: tuple[str, ...] = (), graph: int = 0
    ) -> list[Pair]:
        """A request in `slot` on `stream`: how it stands to the last one of each other stream.

        Of a stream only its newest request counts: a stream keeps its own order. What is
        asked while `graph` is captured (0: no capture) launches nothing on its stream, so it
        meets only the requests of the same capture.
        """
        before = self.last.setdefault((slot, graph), {})
        now = Asked(stream, self._mark(stream), site, stack)
        pairs = [
            Pair(slot, earlier, now, self._knows(stream, earlier))
            for other, earlier in before.items()
            if other != stream
        ]
        before[stream] = now
        return pairs

    def recorded(self, event: Any, stream: int) -> None:
        """`event` was recorded on `stream`: it carries all that the stream knows."""
        self._mark(stream)
        with suppress(AttributeError, TypeError):  # an event that takes no attribute
            setattr(event, KNOWN, (self.own, dict(self._clock(stream))))

    def waited(self, event: Any, stream: int) -> None:
        """`stream` waits for `event`; one that was never recorded orders nothing."""
        _learn(self._clock(stream), self._carried(event))

    def host_waited(self, event: Any) -> None:
        """The host waited for `event`: whatever is launched from now on comes after it."""
        _learn(self.host, self._carried(event))

    def host_joined(self, stream: int | None = None) -> None:
        """The host waited for a stream, or for the whole device."""
        for known in list(self.clocks) if stream is None else [stream]:
            _learn(self.host, self._clock(known))

    def _carried(self, event: Any) -> Clock:
        """The marks that `event` carries; none where it was recorded in an earlier watch."""
        own, clock = getattr(event, KNOWN, (None, {}))
        return clock if own is self.own else {}

    def _clock(self, stream: int) -> Clock:
        return self.clocks.setdefault(stream, {})

    def _mark(self, stream: int) -> int:
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        return clock[stream]

    def _knows(self, stream: int, earlier: Asked) -> bool:
        known = max(
            self._clock(stream).get(earlier.stream, 0), self.host.get(earlier.stream, 0)
        )
        return known >= earlier.mark


@dataclass
class StreamWatch:
    """Which streams asked in which slot, and the watch while one is on."""

    order: StreamOrder = field(default_factory=StreamOrder)
    on: bool = False
    steps: set[int] = field(default_factory=set)
    watches: int = 0
    last: dict[Slot, int] = field(default_factory=dict)
    judged: set[tuple[Slot, int, int]] = field(default_factory=set)
    written: set[tuple[Slot, int, int, bool]] = field(default_factory=set)

    def begins(self, slot: Slot, stream: int, site: int) -> bool:
        """A request while no watch is on: whether it starts one, being a second stream's."""
        before = self.last.setdefault(slot, stream)
        self.last[slot] = stream
        new = before != stream and (slot, site, stream) not in self.judged
        if not new or self.watches >= MOST_WATCHES:
            return False
        self.on, self.watches = True, self.watches + 1
        self.steps.clear()
        self.order = StreamOrder()
        return True

    def judged_now(
        self, slot: Slot, stream: int, site: int, stack: tuple[str, ...], graph: int
    ) -> list[Pair]:
        """A request while a watch is on: the pairs that it makes and that are not known yet."""
        fresh = []
        for pair in self.order.asked(slot, stream, site, stack, graph):
            self.judged |= {(slot, one.site, one.stream) for one in (pair.first, pair.second)}
            key = (pair.slot, pair.first.site, pair.second.site, pair.ordered)
            if key not in self.written:
                self.written.add(key)
                fresh.append(pair)
        return fresh

    def ends(self, step: int) -> bool:
        """A request in serving, in real step `step`: whether the watch ends with it."""
        self.steps.add(step)
        if len(self.steps) <= WATCHED_STEPS:
            return False
        self.on = False
        self.last.clear()
        return True


def _learn(clock: Clock, news: Mapping[int, int]) -> None:
    for stream, mark in news.items():
        if clock.get(stream, 0) < mark:
            clock[stream] = mark
