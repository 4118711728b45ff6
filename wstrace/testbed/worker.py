"""What the testbed adds to the CPU worker: the manager, requests from attention, the lock.

Everything goes through vLLM's own WorkspaceManager; the testbed only decides who calls it,
where the CPU engine never does. `WorkerBase.__init__` is the hook because it runs after the
plugins are loaded and before `WorkerWrapperBase.init_device`, where wstrace's recorder wraps
the worker's methods: the recorder's wrappers stay outside, in whichever order vLLM loads
the two plugins.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstrace.testbed.settings import Settings

_settings: Settings | None = None


def active_settings() -> Settings:
    """The settings that `install` was given in this process."""
    assert _settings is not None, "the testbed is not installed in this process"
    return _settings


def install(settings: Settings) -> None:
    """Arrange that the next CPU worker of this process is equipped. Idempotent."""
    global _settings
    from vllm.v1.worker.worker_base import WorkerBase

    first = _settings is None
    _settings = settings
    if first:
        _after(WorkerBase, "__init__", _equip)


def _after(owner: type, name: str, then: Callable[[Any], None]) -> None:
    """Call `then(self)` after each `owner.name(self, ...)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        then(self)
        return result

    setattr(owner, name, wrapper)


def _equip(worker: Any) -> None:
    """Wrap the class of `worker` once; a worker that is not the CPU's is left alone."""
    owner = type(worker)
    if owner.__name__ != "CPUWorker" or "_wstrace_testbed" in vars(owner):
        return
    owner._wstrace_testbed = True
    _after(owner, "init_device", _give_manager)
    _after(owner, "compile_or_warm_up_model", _end_warm_up)
    _wrap_attention()


def _give_manager(worker: Any) -> None:
    """As GPU workers do in init_device; lanes exist from 0.28."""
    from vllm.v1.worker.workspace import init_workspace_manager

    settings = active_settings()
    lanes = "num_lanes" in inspect.signature(init_workspace_manager).parameters
    more = {"num_lanes": settings.num_lanes} if lanes else {}
    init_workspace_manager(worker.device, settings.num_ubatches, **more)
    _allow_empty_cache()


def _allow_empty_cache() -> None:
    """The manager's growth calls `torch.accelerator.empty_cache()`, which raises without one.

    vLLM's CPU runner replaces it by a no-op from about 0.24 on; elsewhere the testbed does.
    """
    import torch

    try:
        torch.accelerator.empty_cache()
    except (AttributeError, RuntimeError):
        torch.accelerator.empty_cache = lambda: None


def _end_warm_up(worker: Any) -> None:
    """Run a decode batch and lock, as `capture_model` does; not under enforce_eager."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.workspace import lock_workspace

    if worker.model_config.enforce_eager:
        return
    decodes = min(active_settings().warm_up_decodes, worker.scheduler_config.max_num_seqs)
    if decodes:
        worker.model_runner._dummy_run(
            decodes,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            force_attention=True,
            uniform_decode=True,
        )
    lock_workspace()


def _wrap_attention() -> None:
    from vllm.config import get_current_vllm_config
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    def keep_config(impl: Any) -> None:
        impl._wstrace_config = get_current_vllm_config()

    original = CPUAttentionBackendImpl.forward

    @functools.wraps(original)
    def forward(
        self: Any,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: Any,
        attn_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with _lane():
            for pattern in _patterns(self):
                pattern.forward(query, attn_metadata)
        return original(
            self, layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs
        )

    _after(CPUAttentionBackendImpl, "__init__", keep_config)
    CPUAttentionBackendImpl.forward = forward


def _patterns(impl: Any) -> list[Any]:
    """The layer's patterns, made at its first forward pass: the block size is final by then."""
    made: list[Any] | None = vars(impl).get("_wstrace_patterns")
    if made is None:
        made = [
            pattern_class(name)(impl, impl._wstrace_config)
            for name in active_settings().patterns
        ]
        impl._wstrace_patterns = made
    return made


def pattern_class(name: str) -> Any:
    """The class that `module:Class` names. Raises `WstraceError` if there is none."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise WstraceError(
            f"no pattern {name}: {error}", "Put the module on PYTHONPATH and check its name."
        ) from error


def _lane() -> AbstractContextManager[None]:
    """The lane to ask under: 0, or `serving_lane` once the manager is locked."""
    from vllm.v1.worker import workspace

    lane = active_settings().serving_lane
    if not lane or not workspace.current_workspace_manager().is_locked():
        return nullcontext()
    context: AbstractContextManager[None] = workspace.use_workspace_lane(lane)
    return context
