"""The checks of `wstrace doctor`: what would happen if vLLM started here."""

from __future__ import annotations

import importlib
import inspect
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, Literal

from wstrace.recorder.install import MANAGER_HOOKS, RUNNER_METHODS, WORKER_METHODS

GROUP = "vllm.general_plugins"
WORKSPACE = "vllm.v1.worker.workspace"


@dataclass(frozen=True)
class Check:
    """One line of the report: `bad` means that nothing (or too little) would be recorded."""

    name: str
    state: Literal["ok", "warn", "bad"]
    detail: str
    advice: str = ""


def run_all(folder: Path) -> list[Check]:
    """Every check, in the order in which a run would meet them."""
    return [_plugin(), _allow_list(), _vllm(), *_hooks(), _folder(folder)]


def _plugin() -> Check:
    found = [e for e in entry_points(group=GROUP) if e.name == "wstrace"]
    if not found:
        return Check(
            "plugin",
            "bad",
            f"no entry point wstrace in {GROUP}",
            "Install wstrace with pip into the environment that vLLM runs in.",
        )
    try:
        found[0].load()
    except Exception as error:
        return Check("plugin", "bad", f"does not load: {error!r}", "Reinstall wstrace.")
    return Check("plugin", "ok", f"{found[0].value} is installed and loads")


def _allow_list() -> Check:
    listed = os.environ.get("VLLM_PLUGINS")
    if listed is None:
        return Check("VLLM_PLUGINS", "ok", "unset, all plugins load")
    if "wstrace" in listed.split(","):
        return Check("VLLM_PLUGINS", "ok", f"lists wstrace ({listed})")
    return Check(
        "VLLM_PLUGINS",
        "warn",
        f"is {listed!r}, which keeps wstrace out",
        "`wstrace run` adds it (vLLM's compile cache key changes); else add it yourself.",
    )


def _vllm() -> Check:
    try:
        return Check("vLLM", "ok", version("vllm"))
    except PackageNotFoundError:
        return Check("vLLM", "bad", "not installed here", "Install wstrace next to vLLM.")


def _hooks() -> Iterator[Check]:
    """Whether each method that the recorder wraps is there, with the known signature."""
    try:
        workspace: Any = importlib.import_module(WORKSPACE)
        manager = workspace.WorkspaceManager
    except (ImportError, AttributeError) as error:
        yield Check(
            "WorkspaceManager",
            "bad",
            f"not found: {error}",
            "This vLLM has no workspace (0.13+).",
        )
        return
    for name, parameters in MANAGER_HOOKS.items():
        yield _method(manager, name, parameters)
    yield from _workers()


def _method(owner: type, name: str, parameters: tuple[str, ...] | None) -> Check:
    method = inspect.getattr_static(owner, name, None)
    label = f"{owner.__name__}.{name}"
    if method is None:
        state: Literal["warn", "bad"] = "bad" if name in ("_ensure_workspace_size",) else "warn"
        return Check(label, state, "no such method in this vLLM")
    found = tuple(inspect.signature(method).parameters)
    if parameters is not None and found != parameters:
        return Check(
            label,
            "bad",
            f"takes ({', '.join(found)}), known is ({', '.join(parameters)})",
            "This hook stands down; look for a newer wstrace.",
        )
    return Check(label, "ok", "fits")


def _workers() -> Iterator[Check]:
    """Worker and runner methods, on the classes of this vLLM that can be imported here."""
    places = {
        "vllm.v1.worker.gpu_worker:Worker": tuple(WORKER_METHODS),
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner": tuple(RUNNER_METHODS),
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner": tuple(RUNNER_METHODS),
    }
    for place, names in places.items():
        module, _, attribute = place.partition(":")
        try:
            owner = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            yield Check(place, "warn", f"cannot be imported here: {type(error).__name__}")
            continue
        missing = [n for n in names if inspect.getattr_static(owner, n, None) is None]
        told = (
            f"all of {len(names)} methods" if not missing else f"without {', '.join(missing)}"
        )
        yield Check(place, "warn" if missing else "ok", told)


def _folder(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("trace folder", "ok", f"{folder.resolve()} can be written")
    except OSError as error:
        return Check(
            "trace folder",
            "bad",
            f"{folder} cannot be written: {error.strerror}",
            "Give another folder with -o.",
        )
