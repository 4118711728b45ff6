"""The arenas of the current WorkspaceManager: slots, sizes, addresses, generations.

Reads the manager's private fields, the same in every version since 0.13 but for lanes
(0.28) and the slot index (0.32). No tensor is held, so that vLLM's free-then-allocate
growth frees as it does without us.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from wstrace.trace.records import Slot


@dataclass(frozen=True)
class Arena:
    """One slot's buffer as seen now: identity of the tensor, bytes, address."""

    identity: int = 0
    bytes: int = 0
    address: int = 0


EMPTY = Arena()


def arena_of(tensor: Any) -> Arena:
    """The arena behind a workspace tensor (None: no arena yet)."""
    if tensor is None:
        return EMPTY
    size = tensor.numel() * tensor.element_size()
    return Arena(id(tensor), size, tensor.data_ptr())


def num_lanes(manager: Any) -> int:
    """Lanes per ubatch; 1 before 0.28."""
    return int(getattr(manager, "_num_lanes", 1))


def num_slots(manager: Any) -> int:
    """Slots that this manager serves (older versions keep two list entries regardless)."""
    return int(getattr(manager, "_num_ubatches", 1)) * num_lanes(manager)


def slot_at(manager: Any, index: int) -> Slot:
    """The (ubatch, lane) of a list index."""
    lanes = num_lanes(manager)
    return Slot(index // lanes, index % lanes)


def slot_index(manager: Any) -> int:
    """List index of the calling thread's slot.

    Raises whatever vLLM raises there (KeyError off a ubatch thread, RuntimeError for a lane
    that is not configured): the caller then leaves the request to vLLM.
    """
    own = getattr(manager, "_get_workspace_id", None)
    if own is not None:
        return int(own())
    module = sys.modules[type(manager).__module__]
    lane = getattr(module, "_workspace_lane", None)
    ubatch = int(module.dbo_current_ubatch_id())
    return ubatch * num_lanes(manager) + (int(lane.get()) if lane is not None else 0)


@dataclass
class Arenas:
    """Generations of the current manager's slots. A generation counts replacements."""

    manager_id: int = 0
    known: dict[int, Arena] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)

    def remade(self) -> None:
        """A new manager was made."""
        self.manager_id += 1
        self.known.clear()
        self.generations.clear()

    def sizes(self, manager: Any) -> tuple[list[Slot], list[int]]:
        """All slots with their bytes."""
        count = num_slots(manager)
        tensors = manager._current_workspaces[:count]
        return [slot_at(manager, i) for i in range(count)], [arena_of(t).bytes for t in tensors]

    def changes(self, manager: Any) -> list[tuple[int, Arena, Arena]]:
        """(index, before, after) of every slot replaced since the last look.

        Replacement bumps the slot's generation; the first arena of a slot is generation 1.
        """
        changed = []
        for index, tensor in enumerate(manager._current_workspaces[: num_slots(manager)]):
            now, before = arena_of(tensor), self.known.get(index, EMPTY)
            if now != before:
                self.known[index] = now
                self.generations[index] = self.generations.get(index, 0) + 1
                changed.append((index, before, now))
        return changed

    def generation(self, index: int) -> int:
        """Replacements of this slot's arena so far."""
        return self.generations.get(index, 0)
