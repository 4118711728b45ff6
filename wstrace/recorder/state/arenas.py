"""The arenas of the current WorkspaceManager: slots, sizes, addresses, generations.

No tensor is held, so that vLLM's free-then-allocate growth frees as it does without us.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wstrace.recorder.vllm_state import workspace
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
        slots = [
            workspace.slot_at(manager, index) for index in range(workspace.num_slots(manager))
        ]
        return slots, [arena_of(tensor).bytes for tensor in workspace.tensors(manager)]

    def changes(self, manager: Any) -> list[tuple[int, Arena, Arena]]:
        """(index, before, after) of every slot replaced since the last look.

        Replacement bumps the slot's generation; the first arena of a slot is generation 1.
        """
        changed = []
        for index, tensor in enumerate(workspace.tensors(manager)):
            now, before = arena_of(tensor), self.known.get(index, EMPTY)
            if now != before:
                self.known[index] = now
                self.generations[index] = self.generations.get(index, 0) + 1
                changed.append((index, before, now))
        return changed

    def present(self, manager: Any) -> dict[Slot, int]:
        """The generation in each slot that has an arena; empty without a manager."""
        if manager is None:
            return {}
        return {workspace.slot_at(manager, i): n for i, n in self.generations.items()}

    def generation(self, index: int) -> int:
        """Replacements of this slot's arena so far."""
        return self.generations.get(index, 0)
