"""Wiring: which vLLM methods are wrapped, in which process, and when.

`WorkerWrapperBase.init_device` is the door: before it runs the methods of the worker's class
are wrapped, after it those of the model runner's class. What is wrapped, and what is known
of it, is said in one place, `wstrace.vllm.methods`.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks import captures
from wstrace.recorder.hooks.manager import hook_manager
from wstrace.recorder.hooks.nearness import look_at_step
from wstrace.recorder.hooks.persistent import wrap_permute_scratch
from wstrace.recorder.hooks.production import announce, tell_misspelt
from wstrace.recorder.hooks.worker import (
    Maker,
    Method,
    ray_step,
    runner_makers,
    worker_makers,
)
from wstrace.recorder.imports import when_imported
from wstrace.recorder.settings import Settings, read_settings
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state.config_limits import read_ranks
from wstrace.reserve.schema import model_digest
from wstrace.trace.records import End, Ranks, WorkerInit
from wstrace.vllm import methods

# vLLM 0.13.0 to 0.33.0: modules of WorkerWrapperBase, WorkspaceManager and (0.23.0 on)
# MoEPermuteScratch.
WORKER_MODULE = "vllm.v1.worker.worker_base"
WORKSPACE_MODULE = "vllm.v1.worker.workspace"
SCRATCH_MODULE = "vllm.model_executor.layers.fused_moe.moe_permute_unpermute"

_live: Live | None = None


def current() -> Live | None:
    """The recorder of this process, if one is attached."""
    return _live


def install(settings: Settings | None = None) -> Live:
    """Attach the recorder to this process; a second call returns the first recorder."""
    global _live
    if _live is None:
        _live = Live(settings or read_settings())
        if _live.settings.asks_nothing:
            return _live
        if _live.near is not None:
            _live.near.tell = functools.partial(guarded, _live, "near", look_at_step, _live)
        when_imported(WORKER_MODULE, functools.partial(_hook_door, _live))
        atexit.register(_at_exit, _live)
        _watch_forks()
    return _live


@functools.cache
def _watch_forks() -> None:
    """Once a process: such a callback cannot be taken back."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    if _live is not None:
        guarded(_live, "fork", _live.counters.forked)


def uninstall() -> None:
    """Take every hook off and close the trace file (used by `wstrace.record`)."""
    global _live
    if _live is not None:
        _at_exit(_live)
        _live.hooks.remove()
        _live = None


def _at_exit(live: Live) -> None:
    guarded(live, "door", _look_for_door, live)
    if live.output.writer.is_open:
        guarded(live, "counts", live.flush_counts)
    guarded(live, "end", _write_end, live)


def _write_end(live: Live) -> None:
    if live.output.writer.is_open:
        live.output.write(End(steps=live.steps.index))
    live.output.writer.close()


def _hook_door(live: Live, module: ModuleType) -> None:
    """Called within vLLM's import of this module, so it must not raise."""
    if live is _live:
        guarded(live, "door", _open_door, live, module)


def _open_door(live: Live, module: ModuleType) -> None:
    owner = getattr(module, methods.DOOR.owner, None)
    if not isinstance(owner, type):
        _no_door(live, f"no class {methods.DOOR.owner} in {WORKER_MODULE}")
        return
    door = _init_device(live)
    if not live.hooks.wrap(owner, methods.DOOR, door):
        guarded(live, "door", live.output.write_waiting)
    for copied in _with_a_door(owner):
        live.hooks.wrap(copied, methods.DOOR, door)


def _with_a_door(owner: type) -> list[type]:
    """Subclasses, of any depth, that have the door's method themselves.

    Ray gives an actor's class its own wrapper around each inherited method, made before this
    plugin is loaded: vLLM's older Ray executor (RayWorkerWrapper) never calls the base class's
    attribute.
    """
    found: list[type] = []
    subclasses: list[type] = owner.__subclasses__()
    for sub in subclasses:
        if methods.DOOR.name in vars(sub):
            found.append(sub)
        found += _with_a_door(sub)
    return found


def _no_door(live: Live, why: str) -> None:
    """Nothing will be recorded here: say so now, since no worker record will come."""
    live.hooks.stand_down(methods.DOOR.label, why)
    guarded(live, "door", live.output.write_waiting)


def _look_for_door(live: Live) -> None:
    """A process that had a workspace but no door: vLLM moved the door's module."""
    if methods.DOOR.label not in live.hooks.states and WORKSPACE_MODULE in sys.modules:
        _no_door(live, f"{WORKER_MODULE} was never imported")


def _init_device(live: Live) -> Maker:
    inside: set[int] = set()  # a subclass's own method may call the base class's

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
            if id(self) in inside:
                return original(self, *args, **kwargs)
            inside.add(id(self))
            try:
                guarded(live, "before init_device", _before_init_device, live, self)
                result = original(self, *args, **kwargs)
                guarded(live, "after init_device", _after_init_device, live, self)
                return result
            finally:
                inside.discard(id(self))

        return init_device

    return make


def _before_init_device(live: Live, wrapper: Any) -> None:
    worker = wrapper.worker
    live.worker.starts(worker)
    guarded(live, "phases", live.phases.restarted)
    guarded(live, "limits", _read_limits, live, worker)
    guarded(live, "manager hooks", _hook_workspace, live)
    guarded(live, "capture hooks", captures.hook_captures, live)
    makers = worker_makers(live)
    for known in methods.WORKER:
        if live.settings.sees_steps or known.name not in methods.STEPS:
            live.hooks.wrap(type(worker), known, makers[known.name])
    if live.settings.sees_steps and hasattr(type(wrapper), methods.RAY_STEP.name):
        live.hooks.wrap(type(wrapper), methods.RAY_STEP, ray_step(live))


def _read_limits(live: Live, worker: Any) -> None:
    live.worker.read_limits()
    live.memory.starts(worker)


def _hook_workspace(live: Live) -> None:
    try:
        module = importlib.import_module(WORKSPACE_MODULE)
    except ImportError as error:
        live.hooks.stand_down("WorkspaceManager", f"no module {WORKSPACE_MODULE}: {error}")
        return
    hook_manager(live, module)


def _after_init_device(live: Live, wrapper: Any) -> None:
    worker = wrapper.worker
    runner = type(getattr(worker, "model_runner", None))
    makers = runner_makers(live)
    for known in methods.RUNNER:
        live.hooks.wrap(runner, known, makers[known.name])
    when_imported(SCRATCH_MODULE, functools.partial(_hook_scratch, live))
    ranks, world = _ranks(live, worker)
    live.worker.ranks = ranks
    guarded(live, "settings", tell_misspelt, live)
    if live.settings.guard:
        guarded(live, "guard", announce, live)
    live.output.write_worker(
        WorkerInit(
            ranks=ranks,
            world=world,
            limits=live.worker.limits,
            runner=f"{runner.__module__}.{runner.__qualname__}",
            digest=model_digest(live.worker.limits),
            native=live.counters.table is not None,
        )
    )


def _ranks(live: Live, worker: Any) -> tuple[Ranks, Ranks]:
    try:
        return read_ranks(worker)
    except Exception as error:
        live.output.complain("ranks", error)
        return Ranks(rank=getattr(worker, "rank", None)), Ranks()


def _hook_scratch(live: Live, module: ModuleType) -> None:
    scratch = getattr(module, methods.SCRATCH.owner, None)
    if isinstance(scratch, type) and live is _live:
        maker = wrap_permute_scratch(live)
        guarded(live, "scratch", live.hooks.wrap, scratch, methods.SCRATCH, maker)
