"""Wiring: which vLLM methods are wrapped, in which process, and when.

The hook table below is the one list of what is wrapped. `WorkerWrapperBase.init_device` is
the door: before it runs the methods of the worker's class are wrapped, after it those of
the model runner's class and of the manager that it made.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from wstrace.recorder import apply, capture
from wstrace.recorder.arenas import num_slots
from wstrace.recorder.config import read_limits, read_ranks
from wstrace.recorder.growth import RESIZES_ALL_UBATCHES_UNTIL
from wstrace.recorder.imports import when_imported
from wstrace.recorder.live import Live
from wstrace.recorder.memory import blocks_record, fixed_kv, kv_record
from wstrace.recorder.persistent import wrap_permute_scratch, wrap_persistent
from wstrace.recorder.requests import pose_as, wrap_ensure
from wstrace.recorder.settings import Settings, read_settings
from wstrace.trace.records import End, Limits, Lock, Manager, Worker

Method = Callable[..., Any]
Maker = Callable[[Method], Method]

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
        when_imported(WORKER_MODULE, functools.partial(_hook_wrapper_base, _live))
        atexit.register(_at_exit, _live)
    return _live


def uninstall() -> None:
    """Take every hook off and close the trace file (used by `wstrace.record`)."""
    global _live
    if _live is not None:
        _at_exit(_live)
        _live.hooks.remove()
        _live = None


def _at_exit(live: Live) -> None:
    live.flush_counts(force=True)
    if live.writer.path is not None:
        live.write(End(steps=live.steps.index))
    live.writer.close()


def _hook_wrapper_base(live: Live, module: ModuleType) -> None:
    live.hooks.wrap(module.WorkerWrapperBase, "init_device", _init_device(live))


def _init_device(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
            _guarded(live, "before init_device", _before_init_device, live, self.worker)
            result = original(self, *args, **kwargs)
            _guarded(live, "after init_device", _after_init_device, live, self.worker)
            return result

        return init_device

    return make


def _guarded(live: Live, what: str, function: Callable[..., Any], *args: Any) -> None:
    """Run a piece of the recorder; its errors are noted, never raised into vLLM."""
    try:
        function(*args)
    except Exception as error:
        live.complain(what, error)


def _before_init_device(live: Live, worker: Any) -> None:
    live.worker = worker
    live.limits = read_limits(worker.vllm_config)
    live.memory.fixed = fixed_kv(worker)
    hook_manager(live, __import__(WORKSPACE_MODULE, fromlist=["WorkspaceManager"]))
    capture.hook_captures(live)
    for name, maker in WORKER_METHODS.items():
        live.hooks.wrap(type(worker), name, maker(live))


def _after_init_device(live: Live, worker: Any) -> None:
    from wstrace.reserve.schema import model_digest

    ranks, world = read_ranks(worker)
    runner = type(worker.model_runner)
    live.write_worker(
        Worker(
            ranks=ranks,
            world=world,
            limits=live.limits,
            runner=f"{runner.__module__}.{runner.__qualname__}",
            digest=model_digest(live.limits),
        )
    )
    for name, maker in RUNNER_METHODS.items():
        live.hooks.wrap(runner, name, maker(live))
    when_imported(SCRATCH_MODULE, functools.partial(_hook_scratch, live))


def _hook_scratch(live: Live, module: ModuleType) -> None:
    scratch = getattr(module, "MoEPermuteScratch", None)
    if scratch is not None:
        live.hooks.wrap(
            scratch, "reserve", wrap_permute_scratch(live), ("self", "expanded_rows")
        )


MANAGER_HOOKS: dict[str, tuple[str, ...] | None] = {
    "__init__": None,
    "_ensure_workspace_size": ("self", "required_bytes"),
    "lock": ("self",),
    "unlock": ("self",),
    "get_persistent_resource": ("self", "key", "factory"),
}
LATER_HOOKS = ("unlock", "get_persistent_resource")

# -- the manager -----------------------------------------------------------------------------


def hook_manager(live: Live, module: ModuleType) -> None:
    """Wrap the methods of `WorkspaceManager` in vLLM's workspace module."""
    manager = getattr(module, "WorkspaceManager", None)
    if manager is None:
        live.hooks.stand_down("WorkspaceManager", f"not in {module.__name__}")
        return
    live.original_ensure = getattr(manager, "_ensure_workspace_size", None)
    makers: dict[str, Maker] = {
        "__init__": _manager_init(live),
        "_ensure_workspace_size": wrap_ensure(live),
        "lock": _locking(live, "lock"),
        "unlock": _locking(live, "unlock"),
        "get_persistent_resource": wrap_persistent(live),
    }
    for name, parameters in MANAGER_HOOKS.items():
        if name not in LATER_HOOKS or hasattr(manager, name):
            live.hooks.wrap(manager, name, makers[name], parameters)
    existing = getattr(module, "_manager", None)
    if existing is not None:
        _guarded(live, "existing manager", _adopt, live, existing)


def _manager_init(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **kwargs)
            _guarded(live, "manager init", _adopt, live, self)

        return __init__

    return make


def _adopt(live: Live, manager: Any) -> None:
    """A manager appeared: forget the old one's arenas."""
    live.forget_hot()
    live.manager = manager
    live.arenas.remade()
    live.multi_slot = num_slots(manager) > 1
    version = live.memory.vllm
    live.resizes_all_ubatches = version is not None and version < RESIZES_ALL_UBATCHES_UNTIL
    live.phases.remade()
    live.write_for_worker(
        Manager(
            event="init",
            id=live.arenas.manager_id,
            num_ubatches=getattr(manager, "_num_ubatches", 1),
            num_lanes=getattr(manager, "_num_lanes", 1),
            device=str(manager._device),
        )
    )


def _locking(live: Live, event: Any) -> Maker:
    def make(original: Method) -> Method:
        def method(self: Any) -> Any:
            result = original(self)
            _guarded(live, event, _note_lock, live, self, event)
            return result

        method.__name__ = event
        pose_as(method, f"WorkspaceManager.{event}")
        return method

    return make


def _note_lock(live: Live, manager: Any, event: Any) -> None:
    slots, sizes = live.arenas.sizes(manager)
    live.arenas.changes(manager)
    live.write(
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
        live.reserve_mark = None
        live.phases.unlocked()


# -- worker and runner -----------------------------------------------------------------------


def _phase(name: str) -> Callable[[Live], Maker]:
    """A method that is a phase; a reserve is applied where the phase is one that may."""

    def maker(live: Live) -> Maker:
        def make(original: Method) -> Method:
            @functools.wraps(original)
            def method(self: Any, *args: Any, **kwargs: Any) -> Any:
                with live.phases.inside(name):
                    if name in RESERVE_AT:
                        _reserve(live, name)
                    return original(self, *args, **kwargs)

            return method

        return make

    return maker


RESERVE_AT = ("profile_run", "compile_or_warm_up_model")


def _reserve(live: Live, name: str) -> None:
    """Apply the reserve; compile_or_warm_up_model is the fallback where nothing profiled."""
    _guarded(live, "limits", _refresh_limits, live)
    if name == "profile_run" or live.reserve_mark is None:
        apply.apply_reserve(live)


def _refresh_limits(live: Live) -> None:
    now = read_limits(live.worker.vllm_config)
    changed = {k: v for k, v in now.items() if live.limits.get(k) != v}
    if changed:
        live.limits = now
        live.write(Limits(limits=changed))


def _execute_model(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            steps = live.steps
            _guarded(live, "step", steps.begin, scheduler_output, live.phases.in_warmup())
            try:
                return original(self, scheduler_output, *args, **kwargs)
            finally:
                steps.end()
                live.flush_counts()

        return execute_model

    return make


def _dummy(kind: Any) -> Callable[[Live], Maker]:
    def maker(live: Live) -> Maker:
        def make(original: Method) -> Method:
            @functools.wraps(original)
            def dummy(self: Any, *args: Any, **kwargs: Any) -> Any:
                if live.steps.output is None:
                    tokens = args[0] if args and isinstance(args[0], int) else 0
                    live.steps.begin_dummy(kwargs.get("num_tokens", tokens), kind)
                return original(self, *args, **kwargs)

            return dummy

        return make

    return maker


def _available_memory(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def determine_available_memory(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            _guarded(live, "KV sizing", lambda: live.write(kv_record(self, result)))
            return result

        return determine_available_memory

    return make


def _kv_config(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def initialize_from_config(self: Any, kv_cache_config: Any, *args: Any) -> Any:
            result = original(self, kv_cache_config, *args)
            _guarded(live, "KV blocks", _write_blocks, live, self, kv_cache_config)
            return result

        return initialize_from_config

    return make


def _write_blocks(live: Live, worker: Any, kv_cache_config: Any) -> None:
    record = blocks_record(worker, kv_cache_config)
    if record is not None:
        live.write(record)
    _refresh_limits(live)


def _sleeping(asleep: bool) -> Callable[[Live], Maker]:
    def maker(live: Live) -> Maker:
        def make(original: Method) -> Method:
            @functools.wraps(original)
            def method(self: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(self, *args, **kwargs)
                live.phases.asleep(asleep)
                return result

            return method

        return make

    return maker


def _shutdown(live: Live) -> Maker:
    def make(original: Method) -> Method:
        @functools.wraps(original)
        def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
            with live.phases.inside("shutdown"):
                result = original(self, *args, **kwargs)
            live.flush_counts(force=True)
            return result

        return shutdown

    return make


WORKER_METHODS: dict[str, Callable[[Live], Maker]] = {
    "load_model": _phase("load_model"),
    "determine_available_memory": _available_memory,
    "initialize_from_config": _kv_config,
    "compile_or_warm_up_model": _phase("compile_or_warm_up_model"),
    "execute_model": _execute_model,
    "execute_dummy_batch": _dummy("idle"),
    "sleep": _sleeping(True),
    "wake_up": _sleeping(False),
    "shutdown": _shutdown,
}
RUNNER_METHODS: dict[str, Callable[[Live], Maker]] = {
    "profile_run": _phase("profile_run"),
    "profile_cudagraph_memory": _phase("profile_cudagraph_memory"),
    "initialize_kv_cache": _phase("initialize_kv_cache"),
    "capture_model": _phase("capture_model"),
    "_dummy_run": _dummy("dummy"),
}


def hook_table() -> list[tuple[str, str]]:
    """(owner, method) of everything that is wrapped, for `wstrace doctor` and the docs."""
    manager = (
        "__init__",
        "_ensure_workspace_size",
        "lock",
        "unlock",
        "get_persistent_resource",
    )
    rows = [("WorkerWrapperBase", "init_device")]
    rows += [("WorkspaceManager", name) for name in manager]
    rows += [("Worker", name) for name in WORKER_METHODS]
    rows += [("GPUModelRunner", name) for name in RUNNER_METHODS]
    rows += [("CUDAGraph", name) for name in ("capture_begin", "capture_end", "reset")]
    return [*rows, ("MoEPermuteScratch", "reserve")]
