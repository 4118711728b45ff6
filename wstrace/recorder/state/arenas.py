"""The arenas of each WorkspaceManager that lives: slots, sizes, addresses, generations.

No tensor is held, so that vLLM's free-then-allocate growth frees as it does without us.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
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
class Own:
    """What is known of one manager's slots."""

    manager_id: int
    known: dict[int, Arena] = field(default_factory=dict)
    generations: dict[int, int] = field(default_factory=dict)


class Arenas:
    """Generations of a manager's slots. A generation counts replacements.

    `manager_id`, `known` and `generations` are those of the manager that was made or turned
    to last; one whose making nobody saw counts as that one.
    """

    def __init__(self) -> None:
        self._made = 0
        self._owns: dict[int, tuple[weakref.ref[Any], Own]] = {}
        self._turn(Own(0))

    def _turn(self, own: Own) -> None:
        self.manager_id = own.manager_id
        self.known, self.generations = own.known, own.generations

    def made(self, manager: Any) -> None:
        """A new manager was made."""
        self._made += 1
        own = Own(self._made)
        self._owns = {key: held for key, held in self._owns.items() if held[0]() is not None}
        self._owns.pop(id(manager), None)
        with suppress(TypeError):  # a class of its own slots: it counts as the last one made
            self._owns[id(manager)] = (weakref.ref(manager), own)
        self._turn(own)

    def several(self) -> bool:
        """Whether more than one manager that was seen being made lived at the last making."""
        return len(self._owns) > 1

    def turn_to(self, manager: Any) -> None:
        """What follows is of this manager."""
        held = self._owns.get(id(manager))
        if held is not None and held[1].manager_id != self.manager_id:
            self._turn(held[1])

    def id_of(self, manager: Any) -> int:
        """The manager's number, by the order in which they were made; 0 for an unknown one."""
        held = self._owns.get(id(manager))
        return held[1].manager_id if held is not None else 0

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
        self.turn_to(manager)
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
        self.turn_to(manager)
        return {workspace.slot_at(manager, i): n for i, n in self.generations.items()}

    def generation(self, index: int) -> int:
        """Replacements of this slot's arena so far."""
        return self.generations.get(index, 0)
