"""Which arena generations captured CUDA graphs hold; `hooks.captures` tells of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wstrace.trace.records import Capture, Slot


@dataclass
class CaptureState:
    """Graphs of this process. A throwaway graph (graph-memory estimate) never serves."""

    active: bool = False
    graph: int = 0
    reliable: bool = True
    current: dict[Slot, int] = field(default_factory=dict)
    held: dict[int, dict[Slot, int]] = field(default_factory=dict)
    beside: dict[int, Mapping[Slot, int]] = field(default_factory=dict)

    @property
    def any_serving_graph(self) -> bool:
        """True once a graph that may serve was captured and not released."""
        return bool(self.held)

    def requested(self, slot: Slot, generation: int) -> None:
        """A request in `slot` at `generation`; counts only while capturing."""
        if self.active:
            self.current[slot] = generation

    def holds(self, slot: Slot, generation: int) -> bool:
        """Whether a live graph may hold an address of this generation.

        One that was asked for while it was captured, and one that only lay in its slot then: a
        view that was taken before the capture may be used in it. Where the capture hooks could
        not be set every generation counts as held.
        """
        if not self.reliable:
            return True
        every = (*self.held.values(), *self.beside.values())
        return any(slots.get(slot) == generation for slots in every)

    def begin(self) -> int:
        """A capture starts; returns the graph's number."""
        self.graph += 1
        self.active, self.current = True, {}
        return self.graph

    def end(self, throwaway: bool, present: Mapping[Slot, int] | None = None) -> Capture:
        """The capture ended; the record says which generations it used.

        `present`: the generation that lies in each slot now.
        """
        self.active = False
        if not throwaway:
            self.held[self.graph] = dict(self.current)
            self.beside[self.graph] = present or {}
        return Capture(
            event="end",
            graph=self.graph,
            throwaway=throwaway,
            slots=list(self.current),
            generations=list(self.current.values()),
        )

    def release(self, graph: int) -> bool:
        """A graph was reset or collected; True when it was one that could serve."""
        self.beside.pop(graph, None)
        return self.held.pop(graph, None) is not None
