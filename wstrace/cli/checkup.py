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

from wstrace.recorder import table
from wstrace.recorder.memory import version_pair

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
    for known in table.MANAGER:
        yield _method(manager, known)
    for known in table.MODULE:
        yield _method(workspace, known)
    yield from _workers()


def _method(owner: Any, known: table.Known) -> Check:
    method = inspect.getattr_static(owner, known.name, None)
    why = known.misfit(method)
    if not why:
        return Check(known.label, "ok", "fits")
    if method is None and _too_old_for(known):
        return Check(known.label, "ok", f"vLLM has it from {known.since}")
    return Check(
        known.label,
        "bad" if known.essential else "warn",
        why,
        "This hook stands down; look for a newer wstrace.",
    )


def _too_old_for(known: table.Known) -> bool:
    """True where this vLLM is older than the method."""
    try:
        here, since = version_pair(version("vllm")), version_pair(known.since)
    except PackageNotFoundError:
        return False
    return here is not None and since is not None and here < since


def _workers() -> Iterator[Check]:
    """Worker and runner methods, on the classes of this vLLM that can be imported here."""
    places = {
        "vllm.v1.worker.gpu_worker:Worker": table.WORKER,
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner": table.RUNNER,
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner": table.RUNNER,
    }
    for place, hooks in places.items():
        module, _, attribute = place.partition(":")
        try:
            owner = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            yield Check(place, "warn", f"cannot be imported here: {type(error).__name__}")
            continue
        wrong = [
            f"{known.name}: {why}"
            for known in hooks
            if (why := known.misfit(inspect.getattr_static(owner, known.name, None)))
            and not _too_old_for(known)
        ]
        told = f"all {len(hooks)} methods fit" if not wrong else "; ".join(wrong)
        yield Check(place, "warn" if wrong else "ok", told)


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
