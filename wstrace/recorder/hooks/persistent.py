"""Persistent resources and layers' own scratch, which fail in their own way after the lock.

`WorkspaceManager.get_persistent_resource` (0.31 and later) refuses a key that this slot has
not made in warm-up; `MoEPermuteScratch.reserve` checks the lock itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from wstrace.recorder.hooks.requests import pose_as, site_of
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import frames, workspace
from wstrace.trace.records import Failure, Persistent, Slot
from wstrace.trace.redact import redact_text

_kept: list[Any] = []


def describe_key(key: Any) -> str:
    """A key as text: names, numbers and types only."""
    if isinstance(key, tuple):
        return f"({', '.join(describe_key(part) for part in key)})"
    if isinstance(key, str | int | bool) or key is None:
        return redact_text(repr(key))[:120]
    if isinstance(key, type):
        return key.__qualname__
    return redact_text(str(getattr(key, "name", type(key).__qualname__)))[:120]


def wrap_persistent(live: Live) -> Callable[..., Any]:
    """The maker of the get_persistent_resource wrapper; a hit costs one look-up more."""
    from torch.compiler import is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_persistent_resource(self: Any, key: Any, factory: Any) -> Any:
            if is_compiling():
                return original(self, key, factory)
            index = _slot_without(self, key)
            if index is None:
                return original(self, key, factory)
            if workspace.is_locked(self) and live.settings.on_growth == "grow":
                _make_resource(live, self, index, key, factory)
            try:
                result = original(self, key, factory)
            except AssertionError as error:
                _refused(
                    live, workspace.slot_at(self, index), describe_key(key), error, "persistent"
                )
                raise
            _made(live, workspace.slot_at(self, index), key, result)
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
    try:
        with workspace.allocation_context(manager):
            resource = factory()
    except (RuntimeError, MemoryError):
        return
    workspace.persistent_resources(manager, index)[key] = resource
    _refused(live, workspace.slot_at(manager, index), describe_key(key), None, "persistent")


def _made(live: Live, slot: Slot, key: Any, resource: Any) -> None:
    try:
        caller = frames.calling_frame(sys._getframe(1))
        size = getattr(resource, "nbytes", None)
        live.write(
            Persistent(
                site=site_of(live, caller).id if caller else None,
                slot=slot,
                key=describe_key(key),
                phase=live.phases.current,
                bytes=size if isinstance(size, int) else None,
            )
        )
    except Exception as error:
        live.complain("persistent", error)


def _refused(live: Live, slot: Slot, key: str, error: Exception | None, kind: Any) -> None:
    """Write the failure; `error` None: survived, because the policy is grow."""
    try:
        caller = frames.calling_frame(sys._getframe(1))
        live.write(
            Failure(
                kind=kind,
                site=site_of(live, caller).id if caller else None,
                slot=slot,
                phase=live.phases.current,
                step=live.steps.snapshot(),
                key=key,
                layer=frames.layer_of(caller) if caller else "",
                survived=error is None,
                text=redact_text(str(error or ""))[:400],
                manager=live.arenas.manager_id,
            )
        )
        live.flush_counts()
    except Exception as own:
        live.complain("persistent", own)


def wrap_permute_scratch(live: Live) -> Callable[..., Any]:
    """The maker of the MoEPermuteScratch.reserve wrapper."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def reserve(self: Any, expanded_rows: int) -> Any:
            rows = getattr(self, "max_expanded_rows", None)
            if rows is None or expanded_rows <= rows:
                return original(self, expanded_rows)
            key = f"MoEPermuteScratch rows {rows} -> {expanded_rows}"
            manager = live.manager
            if live.settings.on_growth == "grow" and workspace.is_locked(manager):
                _refused(live, Slot(), key, None, "layer")
                return _reserve_unlocked(self, manager, original, expanded_rows)
            try:
                return original(self, expanded_rows)
            except AssertionError as error:
                _refused(live, Slot(), key, error, "layer")
                raise

        return reserve

    return make


def _reserve_unlocked(scratch: Any, manager: Any, original: Any, rows: int) -> Any:
    """Let the scratch grow; its old tensors stay alive for captured graphs."""
    _kept.append(dict(vars(scratch)))
    with workspace.unlocked(manager):
        return original(scratch, rows)
