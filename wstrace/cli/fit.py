"""Which hooks fit the vLLM that is installed here: the part of `wstrace doctor` on hooks.

Looks at the same table as the recorder, on classes that are imported but not started.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from wstrace.recorder.install import SCRATCH_MODULE, WORKER_MODULE, WORKSPACE_MODULE
from wstrace.recorder.vllm_state.workspace import missing_fields
from wstrace.versions import installed_vllm, release_of
from wstrace.vllm import methods

Hooks = tuple[methods.Known, ...]


@dataclass(frozen=True)
class Place:
    """A class (or, with no `owner`, a module) and what is wrapped there.

    `must` tells that nothing is recorded without it, `since` the first vLLM that has it,
    `seldom` that it need not be there (`places`).
    """

    module: str
    owner: str
    hooks: Hooks
    must: bool = False
    since: str = ""
    seldom: bool = False

    @property
    def name(self) -> str:
        """`module:Class`, or the module."""
        return f"{self.module}:{self.owner}" if self.owner else self.module


@dataclass(frozen=True)
class Fit:
    """What was found at a place. `hook` is empty where the place itself is missing."""

    place: Place
    hook: str
    why: str


PLACES: Final = (
    Place(WORKER_MODULE, "WorkerWrapperBase", (methods.DOOR,), must=True),
    Place(WORKSPACE_MODULE, "WorkspaceManager", (*methods.MANAGER, methods.VIEWS), must=True),
    Place(WORKSPACE_MODULE, "", methods.MODULE),
    Place("vllm.v1.worker.gpu_worker", "Worker", methods.WORKER),
    Place("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", methods.RUNNER),
    Place("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", methods.RUNNER),
    # No such class without Ray, and none from 0.33 on.
    Place("vllm.v1.executor.ray_utils", "RayWorkerWrapper", (methods.RAY_STEP,), seldom=True),
    Place("torch.cuda", "CUDAGraph", methods.GRAPH),
    Place(SCRATCH_MODULE, "MoEPermuteScratch", (methods.SCRATCH,), since="0.32"),
)


def places() -> Iterator[Place]:
    """Where to look: what is seldom there only where it is."""
    return (place for place in PLACES if not place.seldom or _is_there(place))


def _is_there(place: Place) -> bool:
    try:
        module = importlib.import_module(place.module)
    except Exception:  # with that the engine would do without it
        return False
    return isinstance(getattr(module, place.owner, None), type)


def misfits(place: Place) -> list[Fit]:
    """The hooks of a place that would stand down, or why the place cannot be looked at."""
    if _older_than(place.since):
        return []
    try:
        module: Any = importlib.import_module(place.module)
    except Exception as error:
        return [Fit(place, "", f"cannot be imported here: {type(error).__name__}: {error}")]
    owner = getattr(module, place.owner, None) if place.owner else module
    if place.owner and not isinstance(owner, type):
        return [Fit(place, "", f"no class {place.owner} in {place.module}")]
    whys = {known.label: _why(owner, known) for known in place.hooks}
    found = [Fit(place, label, why) for label, why in whys.items() if why]
    return found or list(_fields(place, owner))


def _why(owner: Any, known: methods.Known) -> str:
    method = inspect.getattr_static(owner, known.name, None)
    return "" if method is None and _older_than(known.since) else known.misfit(method)


def _fields(place: Place, owner: Any) -> Iterator[Fit]:
    """The manager's private fields are known from an instance only."""
    if place.owner != "WorkspaceManager":
        return
    import torch

    try:
        manager = owner(torch.device("cpu"))
    except Exception:  # a constructor that wants more says nothing of the fields
        return
    missing = missing_fields(manager)
    if missing:
        yield Fit(place, methods.ENSURE.label, f"the manager has no field {', '.join(missing)}")


def _older_than(since: str) -> bool:
    """True where the vLLM of this environment is older than `since`."""
    return not release_of(installed_vllm()).has(since)
