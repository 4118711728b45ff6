"""`--on-growth grow`: let a locked arena grow once, safely, so that one run finds all escapes.

The larger arena is allocated first and swapped in after, inside the manager's own
allocation context where it has one. A generation that a captured graph replays from is kept
alive for ever, because the graph holds its raw address; live views keep their storage alive
by themselves. Out of memory changes nothing: vLLM then raises its own error.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from wstrace.recorder.state.arenas import arena_of, num_slots, slot_at
from wstrace.recorder.state.process import Live

_kept: list[Any] = []


def resizes_all_ubatches(ensure: Any) -> bool:
    """True where a growth resizes every ubatch (up to 0.18.1), read from vLLM's own code.

    Later versions resize the slot that asked, and their growth knows of no other.
    """
    code = getattr(ensure, "__code__", None)
    return code is not None and "_num_ubatches" in code.co_names


def may_grow(live: Live, manager: Any) -> bool:
    """True where vLLM would refuse, or would free memory that captured graphs point at."""
    if live.settings.on_growth != "grow" or live.capture.active:
        return False
    return bool(manager._locked) or live.capture.any_serving_graph


def try_grow(live: Live, manager: Any, index: int, required: int) -> int | None:
    """Put an arena of `required` bytes in slot `index` (in every slot up to 0.18.1).

    Returns the bytes of old generations kept alive so far, or None when there was no memory.
    """
    import torch

    targets = _targets(live, manager, index, required)
    context = getattr(manager, "_alloc_context", nullcontext)
    try:
        with context():
            fresh = [
                torch.empty((required,), dtype=torch.uint8, device=manager._device)
                for _ in targets
            ]
    except (RuntimeError, MemoryError):
        return None
    for target, tensor in zip(targets, fresh, strict=True):
        _keep_if_captured(live, manager, target)
        manager._current_workspaces[target] = tensor
    return kept_bytes()


def kept_bytes() -> int:
    """Bytes of old arenas that are kept alive for captured graphs."""
    return sum(arena_of(tensor).bytes for tensor in _kept)


def _targets(live: Live, manager: Any, index: int, required: int) -> list[int]:
    if not live.resizes_all_ubatches:
        return [index]
    tensors = manager._current_workspaces[: num_slots(manager)]
    return [i for i, t in enumerate(tensors) if arena_of(t).bytes < required]


def _keep_if_captured(live: Live, manager: Any, index: int) -> None:
    old = manager._current_workspaces[index]
    generation = live.arenas.generation(index)
    if old is not None and live.capture.holds(slot_at(manager, index), generation):
        _kept.append(old)
