"""`--on-growth grow`: let a locked arena grow once, safely, so that one run finds all escapes.

The larger arena is allocated first and swapped in after, inside the manager's own
allocation context where it has one. A generation that a captured graph replays from is kept
alive for ever, because the graph holds its raw address; live views keep their storage alive
by themselves. Out of memory changes nothing: vLLM then raises its own error.
"""

from __future__ import annotations

from typing import Any

from wstrace.recorder.state.arenas import arena_of
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import workspace

_kept: list[Any] = []


def may_grow(live: Live, manager: Any) -> bool:
    """True where vLLM would refuse, or would free memory that captured graphs point at."""
    if live.settings.on_growth != "grow" or live.capture.active:
        return False
    return workspace.is_locked(manager) or live.capture.any_serving_graph


def try_grow(live: Live, manager: Any, index: int, required: int) -> int | None:
    """Put an arena of `required` bytes in slot `index` (in every slot up to 0.18.1).

    Returns the bytes of old generations kept alive so far, or None when there was no memory.
    """
    import torch

    targets = _targets(live, manager, index, required)
    try:
        with workspace.allocation_context(manager):
            fresh = [
                torch.empty((required,), dtype=torch.uint8, device=workspace.device(manager))
                for _ in targets
            ]
    except (RuntimeError, MemoryError):
        return None
    for target, tensor in zip(targets, fresh, strict=True):
        _keep_if_captured(live, manager, target)
        workspace.swap_in(manager, target, tensor)
    return kept_bytes()


def kept_bytes() -> int:
    """Bytes of old arenas that are kept alive for captured graphs."""
    return sum(arena_of(tensor).bytes for tensor in _kept)


def _targets(live: Live, manager: Any, index: int, required: int) -> list[int]:
    if not live.manager.resizes_all_ubatches:
        return [index]
    tensors = enumerate(workspace.tensors(manager))
    return [i for i, tensor in tensors if arena_of(tensor).bytes < required]


def _keep_if_captured(live: Live, manager: Any, index: int) -> None:
    old = workspace.tensor_at(manager, index)
    generation = live.arenas.generation(index)
    if old is not None and live.capture.holds(workspace.slot_at(manager, index), generation):
        _kept.append(old)
