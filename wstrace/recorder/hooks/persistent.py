"""Persistent resources and layers' own scratch, which fail in their own way after the lock.

`WorkspaceManager.get_persistent_resource` (0.31 and later) refuses a key that this slot has
not made in warm-up; `MoEPermuteScratch.reserve` checks the lock itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks.growth import may_add
from wstrace.recorder.hooks.novel import site_of
from wstrace.recorder.hooks.posing import pose_as
from wstrace.recorder.hooks.production import made_late
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import frames, workspace
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import Failure, Persistent, Site, Slot

_kept: list[Any] = []


def describe_key(key: Any) -> str:
    """A key as text: names, numbers and types only."""
    kind = type(key)
    if issubclass(kind, tuple):
        return f"({', '.join(describe_key(part) for part in tuple.__iter__(key))})"
    if kind in (str, int, bool) or key is None:
        return redact_text(repr(key))[:120]
    if kind is type:
        return str(key.__qualname__)
    name = frames.own_attributes(key).get("_name_" if issubclass(kind, Enum) else "name")
    return redact_text(name if type(name) is str else kind.__qualname__)[:120]


def wrap_persistent(live: Live) -> Callable[..., Any]:
    """The maker of the get_persistent_resource wrapper; a hit costs one look-up more."""
    from torch.compiler import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_persistent_resource(self: Any, key: Any, factory: Any) -> Any:
            if is_compiling():
                return original(self, key, factory)
            index = guarded(live, "persistent", _slot_without, self, key)
            if index is None:
                return original(self, key, factory)
            guarded(live, "persistent", _make_resource, live, self, index, key, factory)
            try:
                result = original(self, key, factory)
            except AssertionError as error:
                guarded(live, "failure", _refused_key, live, self, index, key, error)
                raise
            guarded(live, "persistent", _made, live, self, index, key, result)
            return result

        pose_as(get_persistent_resource, "WorkspaceManager.get_persistent_resource")
        return get_persistent_resource

    return make


def _slot_without(manager: Any, key: Any) -> int | None:
    """The calling thread's slot if it lacks this key; None: it has it, or vLLM shall say."""
    try:
        index = workspace.slot_index(manager)
        return None if key in workspace.persistent_resources(manager, index) else index
    except Exception:
        return None


def _make_resource(live: Live, manager: Any, index: int, key: Any, factory: Any) -> None:
    """Under grow a missing resource is made after the lock; it is still an escape."""
    if not may_add(live, manager):
        return
    try:
        with workspace.allocation_context(manager):
            resource = factory()
    except (RuntimeError, MemoryError):
        return
    workspace.persistent_resources(manager, index)[key] = resource
    _refused_key(live, manager, index, key, None)


def _made(live: Live, manager: Any, index: int, key: Any, resource: Any) -> None:
    live.output.write(
        Persistent(
            site=guarded(live, "site", _site_here, live),
            slot=workspace.slot_at(manager, index),
            key=guarded(live, "key", describe_key, key, default=""),
            phase=live.phases.current,
            bytes=guarded(live, "size", _bytes_of, resource),
        )
    )


def _bytes_of(resource: Any) -> int | None:
    """A plain tensor's bytes; a property of any other object would run that object's code."""
    import torch

    return int(resource.nbytes) if type(resource) is torch.Tensor else None


def _site_here(live: Live) -> int:
    return _asker(live).id


def _asker(live: Live) -> Site:
    frame = sys._getframe(1)
    return site_of(live, frames.calling_frame(frame) or frames.outermost(frame))


def _layer_here() -> str:
    caller = frames.calling_frame(sys._getframe(1))
    return frames.layer_of(caller) if caller else ""


def _refused_key(
    live: Live, manager: Any, index: int, key: Any, error: Exception | None
) -> None:
    text = guarded(live, "key", describe_key, key, default="")
    slot = guarded(live, "slot", workspace.slot_at, manager, index, default=Slot())
    _refused(live, slot, text, error, "persistent")


def _refused(live: Live, slot: Slot, key: str, error: Exception | None, kind: Any) -> None:
    """Write the failure; `error` None: survived, because the policy is grow."""
    live.output.write(
        Failure(
            kind=kind,
            site=guarded(live, "site", _site_here, live),
            slot=slot,
            phase=live.phases.current,
            step=guarded(live, "scheduler", live.steps.snapshot),
            key=key,
            layer=guarded(live, "layer", _layer_here, default=""),
            survived=error is None,
            text=redact_text(str(error or ""))[:400],
            manager=live.arenas.manager_id,
        )
    )
    if error is None and live.settings.guard:
        guarded(live, "guard", _tell_guard, live, slot, key)
    live.flush_counts()


def _tell_guard(live: Live, slot: Slot, key: str) -> None:
    made_late(live, _asker(live), slot, key)


def wrap_permute_scratch(live: Live) -> Callable[..., Any]:
    """The maker of the MoEPermuteScratch.reserve wrapper."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def reserve(self: Any, expanded_rows: int) -> Any:
            rows = workspace.scratch_rows(self)
            if rows is None or expanded_rows <= rows:
                return original(self, expanded_rows)
            key = f"MoEPermuteScratch rows {rows} -> {expanded_rows}"
            manager = live.manager.current
            if guarded(live, "scratch", may_add, live, manager, default=False):
                grown, result = _reserve_unlocked(self, manager, original, expanded_rows)
                if grown:
                    guarded(live, "failure", _refused, live, Slot(), key, None, "layer")
                    return result
            try:
                return original(self, expanded_rows)
            except AssertionError as error:
                guarded(live, "failure", _refused, live, Slot(), key, error, "layer")
                raise

        return reserve

    return make


def _reserve_unlocked(scratch: Any, manager: Any, original: Any, rows: int) -> tuple[bool, Any]:
    """Let the scratch grow; its old tensors stay alive for captured graphs.

    (False, None) where there is no memory: the scratch is as it was, and vLLM shall refuse.
    """
    before = dict(vars(scratch))
    try:
        with workspace.unlocked(manager):
            result = original(scratch, rows)
    except (RuntimeError, MemoryError):
        vars(scratch).update(before)
        return False, None
    _kept.append(before)
    return True, result
