"""Hooks on vLLM's WorkspaceManager: made, locked, unlocked, dropped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.hooks.persistent import wrap_persistent
from wstrace.recorder.hooks.posing import pose_as
from wstrace.recorder.hooks.production import wrap_guard
from wstrace.recorder.hooks.views import wrap_views
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import workspace
from wstrace.trace.records import Lock, Manager
from wstrace.vllm import methods

Method = Callable[..., Any]
Maker = Callable[[Method], Method]


def hook_manager(live: Live, module: ModuleType) -> None:
    """Wrap the methods of `WorkspaceManager` in vLLM's workspace module."""
    manager = getattr(module, "WorkspaceManager", None)
    if not isinstance(manager, type):
        live.hooks.stand_down("WorkspaceManager", f"not in {module.__name__}")
        return
    if live.settings.check_views:
        live.hooks.wrap(manager, methods.VIEWS, wrap_views(live))
    live.manager.found(getattr(manager, "_ensure_workspace_size", None))
    makers: dict[str, Maker] = {
        "__init__": _init(live),
        "lock": _locking(live, "lock"),
        "unlock": _locking(live, "unlock"),
        **_requests(live),
    }
    for known in methods.MANAGER:
        if known.name in makers:
            live.hooks.wrap(manager, known, makers[known.name])
    for known in methods.MODULE:
        live.hooks.wrap(module, known, _reset(live))
    existing = workspace.existing_manager(module)
    if existing is not None:
        guarded(live, "existing manager", _adopt, live, existing)


def _requests(live: Live) -> dict[str, Maker]:
    """The wrappers on the hot path: none where only a reserve is applied."""
    if not live.settings.records and not live.settings.guard:
        return {}
    ensure = wrap_seen(live) if live.settings.records else wrap_guard(live)
    return {"_ensure_workspace_size": ensure, "get_persistent_resource": wrap_persistent(live)}


def _init(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            guarded(live, "manager init", _adopt, live, self)

        return __init__

    return make


def _adopt(live: Live, manager: Any) -> None:
    """A manager appeared; an earlier one that still lives is told apart from it."""
    live.forget_hot()
    missing = workspace.missing_fields(manager)
    if missing:
        why = f"the manager has no field {', '.join(missing)}"
        live.hooks.stand_down("WorkspaceManager._ensure_workspace_size", why)
        return
    live.manager.made(manager)
    live.arenas.made(manager)
    if live.arenas.several():
        live.manager.tell_apart(live.arenas.id_of)
    live.guard.remade()
    live.phases.remade()
    live.output.write_for_worker(
        Manager(
            event="init",
            id=live.arenas.manager_id,
            num_ubatches=workspace.num_ubatches(manager),
            num_lanes=workspace.num_lanes(manager),
            device=str(workspace.device(manager)),
        )
    )


def _reset(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def reset_workspace_manager() -> Any:
            result = original()
            guarded(live, "reset", _dropped, live)
            return result

        return reset_workspace_manager

    return make


def _dropped(live: Live) -> None:
    """The manager is gone, and its arenas with it as far as nobody holds a view."""
    if live.manager.current is None:
        return
    live.manager.dropped()
    live.guard.remade()
    live.output.write_for_worker(Manager(event="reset", id=live.arenas.manager_id))


def _locking(live: Live, event: Literal["lock", "unlock"]) -> Maker:
    def make(original: Method) -> Method:
        def method(self: Any) -> Any:
            result = original(self)
            with live.counters.lock:
                guarded(live, event, _note_lock, live, self, event)
            return result

        method.__name__ = event
        pose_as(method, f"WorkspaceManager.{event}")
        return method

    return make


def _note_lock(live: Live, manager: Any, event: Literal["lock", "unlock"]) -> None:
    live.arenas.turn_to(manager)
    slots, sizes = live.arenas.sizes(manager)
    live.arenas.changes(manager)
    live.output.write(
        Lock(
            event=event,
            slots=slots,
            sizes=sizes,
            phase=live.phases.current,
            step=live.steps.index,
            manager=live.arenas.manager_id,
        )
    )
    if event == "lock":
        live.phases.locked()
    else:
        live.manager.unlocked()
        live.phases.unlocked()
