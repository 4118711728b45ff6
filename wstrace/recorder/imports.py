"""Run a callback when a vLLM module is first imported.

Importing `vllm.v1.worker.worker_base` ourselves would cost two seconds in processes that
never need it (`vllm serve --help`), so the recorder waits for vLLM to do it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _NotifyingLoader(Loader):
    """Loads as the real loader does, then calls back."""

    def __init__(self, loader: Loader, callback: Callback) -> None:
        self._loader, self._callback = loader, callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._callback(module)


class _Waiter(MetaPathFinder):
    """Waits for one module name, then takes itself out of the way."""

    def __init__(self, name: str, callback: Callback) -> None:
        self._name, self._callback = name, callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._callback)
        return spec


def when_imported(name: str, callback: Callback) -> None:
    """Call `callback(module)` now if `name` is imported, else right after its import."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        callback(module)
        return
    sys.meta_path.insert(0, _Waiter(name, callback))
