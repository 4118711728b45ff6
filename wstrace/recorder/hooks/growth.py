"""A locked arena grows, safely: `--on-growth grow` finds all escapes in one run with it, and
`WSTRACE_GUARD` keeps a server in production alive.

The larger arena is allocated first and swapped in after, inside the manager's own
allocation context where it has one. An arena that was in its slot while a serving graph was
captured is kept alive for ever, because the graph holds raw addresses; live views keep their
storage alive by themselves, and the device has done what it was given before any other arena
goes. Out of memory changes nothing: vLLM then raises its own error.
"""

from __future__ import annotations

from typing import Any, Final

from wstrace.recorder.state.arenas import arena_of
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import workspace
from wstrace.recorder.vllm_state.kv_cache import free_memory
from wstrace.units import exact

MARGIN: Final = 256 << 20
"""Bytes of free device memory that the guard leaves: libraries and kernels take some of their
own while a server serves, and a failure of theirs would be worse than vLLM's refusal."""

_kept: list[Any] = []


def may_grow(live: Live, manager: Any) -> bool:
    """True where vLLM would refuse, or would free memory that captured graphs point at."""
    if not live.settings.grows or _capturing(live, manager):
        return False
    return workspace.is_locked(manager) or live.capture.any_serving_graph


def may_add(live: Live, manager: Any) -> bool:
    """True where vLLM would refuse what is no arena: a resource, a layer's own scratch."""
    if not live.settings.grows or not workspace.is_locked(manager):
        return False
    if _capturing(live, manager):
        return False
    return not (live.settings.guard and _too_much(live, manager, 0, 0))


def try_grow(live: Live, manager: Any, index: int, required: int) -> int | None:
    """Put an arena of `required` bytes in slot `index` (in every slot up to 0.18.1).

    Returns the bytes of old arenas kept alive so far, or None when there was no memory, or
    none that the guard may take (`live.guard.why` says which).
    """
    with live.counters.lock:
        live.arenas.turn_to(manager)
        live.guard.why = ""
        targets = _targets(live, manager, index, required)
        if live.settings.guard:
            freed = sum(_freed(live, manager, target) for target in targets)
            live.guard.why = _too_much(live, manager, required * len(targets), freed)
            if live.guard.why:
                return None
        fresh = _allocated(live, manager, required, len(targets))
        if fresh is None:
            return None
        for target, tensor in zip(targets, fresh, strict=True):
            _put(live, manager, target, tensor)
        return kept_bytes()


def kept_bytes() -> int:
    """Bytes of old arenas that are kept alive for captured graphs."""
    return sum(arena_of(tensor).bytes for tensor in _kept)


def added_bytes(live: Live, manager: Any) -> int:
    """Bytes that arenas, and old ones kept alive, take above what they took at first growth."""
    now = kept_bytes() + sum(live.arenas.sizes(manager)[1])
    if live.guard.before is None:
        live.guard.before = now
    return now - live.guard.before


def _too_much(live: Live, manager: Any, fresh: int, freed: int) -> str:
    """Why the guard may not allocate `fresh` bytes, of which `freed` come back after."""
    most, added = live.settings.guard_max, added_bytes(live, manager)
    if most is not None:
        wanted = added + fresh - freed
        return "" if wanted <= most else f"WSTRACE_GUARD_MAX is {exact(most)}"
    free = _free(live, manager, fresh + MARGIN)
    if free is None or free >= fresh + MARGIN:
        return ""
    return f"{exact(free)} are free, of which {exact(MARGIN)} stay so"


def _free(live: Live, manager: Any, wanted: int) -> int | None:
    """Free device bytes, after a look into what PyTorch holds without using it where those
    do not suffice (vLLM's own growth does that each time, from 0.20 on)."""
    found = free_memory(live.worker.current)
    if found is not None and found[0] < wanted and workspace.on_cuda(manager):
        import torch

        torch.cuda.empty_cache()
        found = free_memory(live.worker.current)
    return None if found is None else found[0]


def _allocated(live: Live, manager: Any, size: int, count: int) -> list[Any] | None:
    import torch

    how = {"dtype": torch.uint8, "device": workspace.device(manager)}
    try:
        with workspace.allocation_context(manager):
            return [torch.empty((size,), **how) for _ in range(count)]
    except (RuntimeError, MemoryError) as error:
        live.guard.why = str(error).partition("\n")[0][:200] or "no memory"
        return None


def _targets(live: Live, manager: Any, index: int, required: int) -> list[int]:
    if not live.manager.resizes_all_ubatches:
        return [index]
    tensors = enumerate(workspace.tensors(manager))
    return [i for i, tensor in tensors if arena_of(tensor).bytes < required]


def _put(live: Live, manager: Any, index: int, tensor: Any) -> None:
    """Swap the arena in; the old one is kept, or goes once nothing on the device uses it.

    The allocator orders reuse on the stream that an arena was made on, and another stream may
    still read it: `wait` before the last reference goes.
    """
    old = workspace.tensor_at(manager, index)
    if old is not None and _held(live, manager, index):
        _kept.append(old)
    elif old is not None and workspace.on_cuda(manager):
        import torch

        torch.cuda.synchronize(workspace.device(manager))
    workspace.swap_in(manager, index, tensor)


def _held(live: Live, manager: Any, index: int) -> bool:
    """Whether a captured graph may hold the address of the arena that is there now."""
    slot = workspace.slot_at(manager, index)
    return live.capture.holds(slot, live.arenas.generation(index))


def _freed(live: Live, manager: Any, index: int) -> int:
    """Bytes that come back when the arena that is there now is replaced."""
    if _held(live, manager, index):
        return 0
    return arena_of(workspace.tensor_at(manager, index)).bytes


def _capturing(live: Live, manager: Any) -> bool:
    """Whether a graph is being captured: as the hooks say, and where PyTorch knows, it too."""
    if live.capture.active:
        return True
    if not workspace.on_cuda(manager):
        return False
    import torch

    return bool(torch.cuda.is_current_stream_capturing())
