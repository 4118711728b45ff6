"""A `vllm` package of which only the kept files are real.

What those files import beyond each other is stood in for by this module: a logger, a forward
context, the rank groups, and for every other `vllm.*` name an inert class. So the workspace
manager, the ubatch look-up, `round_up`, the environment table, the scheduler's dataclasses
and the worker classes are vLLM's own, and nothing else is. CPU tensors, no kernels.
"""

from __future__ import annotations

import logging
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.matrix.wheels import KEPT, changes


class Inert(type):
    """The class of stand-ins: callable, subclassable, a decorator, a context manager."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not vars(cls).get("_inert"):
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and isinstance(args[0], FunctionType | type) and not kwargs:
            return args[0]
        return cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or not vars(cls).get("_inert"):
            raise AttributeError(name)
        return inert(name)

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *error: object) -> None:
        return None

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    __reversed__ = __iter__

    def __len__(cls) -> int:
        return 0

    def __bool__(cls) -> bool:
        return True

    def _stays_inert(cls, *other: Any) -> Any:
        return cls

    __mul__ = __add__ = __sub__ = __rsub__ = __and__ = _stays_inert


def inert(name: str) -> Any:
    """A stand-in of this name."""
    return Inert(name, (), {"_inert": True})


class _Logger(logging.Logger):
    """vLLM's loggers can say a thing once; here it is said each time."""

    def info_once(self, text: str, *values: Any, **scope: Any) -> None:
        self.info(text, *values)

    def warning_once(self, text: str, *values: Any, **scope: Any) -> None:
        self.warning(text, *values)


class Graph:
    """PyTorch's CUDAGraph without a GPU: nothing is captured."""

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", *more: Any
    ) -> None:
        return None

    def capture_end(self) -> None:
        return None

    def reset(self) -> None:
        return None


class _InertModule(ModuleType):
    """Has every name, but for vLLM's class that it has only where Ray is installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "RayWorkerWrapper":
            raise AttributeError(name)
        return inert(name)


class _Finder(MetaPathFinder, Loader):
    """Real files from the wheel, everything else under `vllm.` an inert module.

    A file that is kept where a release has it, and is not there, is missing as it is there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = {name.removesuffix(".py").replace("/", ".") for name in KEPT}
        self.kept |= {f"vllm.{name}" for name in changes(folder)["modules"].values()}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith("vllm."):
            return None
        if name in self.kept:
            file = self.folder / f"{name.replace('.', '/')}.py"
            if not file.is_file():
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return PathFinder.find_spec(name, [str(file.parent)])
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


def load_vllm(folder: Path) -> None:
    """Make `import vllm` mean the sources in `folder`.

    `torch.accelerator.empty_cache` raises where there is no accelerator and the manager calls
    it from 0.20 on: here, in the test process only, it does nothing, the device says that it
    has no memory, and a CUDAGraph captures nothing.
    """
    sys.path.insert(0, str(folder))
    root = ModuleType("vllm")
    root.__path__ = [str(folder / "vllm")]
    sys.modules["vllm"] = root
    sys.meta_path.insert(0, _Finder(folder))
    _own("vllm.logger", init_logger=_Logger)
    _own("vllm.forward_context", _forward_context=None, ForwardContext=inert("ForwardContext"))
    world = SimpleNamespace(world_size=1, is_last_rank=True, local_rank=0)
    _own("vllm.distributed", get_pp_group=lambda: world)
    groups = dict.fromkeys(("get_tp_group", "get_pp_group", "get_ep_group"), _no_group)
    _own("vllm.distributed.parallel_state", get_world_group=lambda: world, **groups)
    torch.accelerator.empty_cache = lambda: None
    for owner in (torch.accelerator, torch.cuda):
        owner.synchronize = lambda *device: None
    torch.accelerator.get_memory_info = lambda *device: (0, 0)
    torch.cuda.mem_get_info = lambda *device: (0, 0)
    torch.cuda.CUDAGraph = _graph_class(changes(folder)["renamed"])


def load_installed() -> None:
    """The same of the vLLM that is installed here: its manager in a second or two, where the
    whole package takes ten."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    load_vllm(Path(spec.origin).parents[1])


def _graph_class(renamed: dict[str, str]) -> type:
    """The stand-in under PyTorch's name, its methods renamed where a future says so."""
    methods = {n: m for n, m in vars(Graph).items() if isinstance(m, FunctionType)}
    body = {renamed.get(f"CUDAGraph.{name}", name): m for name, m in methods.items()}
    return type("CUDAGraph", (), body)


def _no_group() -> Any:
    raise AssertionError("the group is not initialized")


def _own(name: str, **contents: Any) -> None:
    module = _InertModule(name)
    module.__path__ = []
    vars(module).update(contents)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)
