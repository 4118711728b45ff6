"""vLLM's WorkspaceManager: the one reader and writer of its private fields.

They are the same in every release since 0.13 but for lanes (0.28), the slot index and
persistent resources (0.31), and the context of allocations (0.32).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, Final

from wstrace.trace.records import Slot

# vLLM 0.13.0 to 0.33.0: WorkspaceManager.__init__.
FIELDS: Final = ("_current_workspaces", "_device", "_locked", "_num_ubatches")
"""What a manager must have for the recorder to fit it."""


def missing_fields(manager: Any) -> list[str]:
    """The fields that this manager lacks."""
    return [name for name in FIELDS if not hasattr(manager, name)]


def existing_manager(module: ModuleType) -> Any:
    """The manager that vLLM's workspace module holds already, if any."""
    return getattr(module, "_manager", None)


def tensor_at(manager: Any, index: int) -> Any:
    """The arena's tensor at a list index, None where there is none yet."""
    return manager._current_workspaces[index]


def tensors(manager: Any) -> Sequence[Any]:
    """The tensors of all slots that this manager serves."""
    return manager._current_workspaces[: num_slots(manager)]  # type: ignore[no-any-return]


def swap_in(manager: Any, index: int, tensor: Any) -> None:
    """Make `tensor` the arena at a list index."""
    manager._current_workspaces[index] = tensor


def device(manager: Any) -> Any:
    """Where arenas are allocated."""
    return manager._device


def on_cuda(manager: Any) -> bool:
    """Whether its arenas lie on a CUDA (or ROCm) device, whose work is asynchronous."""
    return getattr(device(manager), "type", "") == "cuda"


def allocation_context(manager: Any) -> AbstractContextManager[Any]:
    """The manager's own context for allocations, where it has one."""
    context: AbstractContextManager[Any] = getattr(manager, "_alloc_context", nullcontext)()
    return context


def is_locked(manager: Any) -> bool:
    """Whether growth is refused."""
    return bool(getattr(manager, "_locked", False))


@contextmanager
def unlocked(manager: Any) -> Iterator[None]:
    """A locked manager that is not locked for a moment."""
    manager._locked = False
    try:
        yield
    finally:
        manager._locked = True


def persistent_resources(manager: Any, index: int) -> Any:
    """The persistent resources of a slot, by key."""
    return manager._persistent_resources[index]


def resizes_all_ubatches(ensure: Any) -> bool:
    """True where a growth resizes every ubatch (up to 0.18.1), read from vLLM's own code.

    Later versions resize the slot that asked, and their growth knows of no other.
    """
    code = getattr(ensure, "__code__", None)
    return code is not None and "_num_ubatches" in code.co_names


def num_ubatches(manager: Any) -> int:
    """Micro-batches that this manager serves."""
    return int(getattr(manager, "_num_ubatches", 1))


def num_lanes(manager: Any) -> int:
    """Lanes per ubatch; 1 before 0.28."""
    return int(getattr(manager, "_num_lanes", 1))


def num_slots(manager: Any) -> int:
    """Slots that this manager serves (older versions keep two list entries regardless)."""
    return num_ubatches(manager) * num_lanes(manager)


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


def slot_reader(manager: Any) -> Callable[[Any], int]:
    """`slot_index` for managers of this class, in one call where vLLM has its own method."""
    own: Callable[[Any], int] | None = getattr(type(manager), "_get_workspace_id", None)
    return own or slot_index


@contextmanager
def acting_as(manager: Any, index: int) -> Iterator[None]:
    """Make this thread stand in slot `index`, as a ubatch thread under a lane would."""
    module = sys.modules[type(manager).__module__]
    slot = slot_at(manager, index)
    ubatching = sys.modules["vllm.v1.worker.ubatching"]
    lane = getattr(module, "_workspace_lane", None)
    token = lane.set(slot.lane) if lane is not None else None
    contexts, thread = ubatching._THREAD_ID_TO_CONTEXT, threading.get_ident()
    if slot.ubatch:
        contexts[thread] = slot.ubatch
    try:
        yield
    finally:
        if slot.ubatch:
            contexts.pop(thread, None)
        if lane is not None:
            lane.reset(token)


def scratch_rows(scratch: Any) -> int | None:
    """Rows that a MoEPermuteScratch holds (vLLM 0.24.0 to 0.33.0); None where none says."""
    rows: int | None = getattr(scratch, "max_expanded_rows", None)
    return rows
