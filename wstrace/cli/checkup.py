"""The checks of `wstrace doctor`: what would happen if vLLM started here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wstrace.versions import installed_vllm, release_of

if TYPE_CHECKING:
    from wstrace.cli.fit import Fit

# vLLM 0.13.0 to 0.33.0: the entry points that load_general_plugins() loads (vllm/plugins).
GROUP = "vllm.general_plugins"
_BLOCK = 4096  # bytes of a file that is written on trial


@dataclass(frozen=True)
class Check:
    """One line of the report: `bad` means that nothing (or too little) would be recorded.

    `hook` is the one that would stand down, as traces name it.
    """

    name: str
    state: Literal["ok", "warn", "bad"]
    detail: str
    advice: str = ""
    hook: str | None = None


def run_all(folder: Path) -> Iterator[Check]:
    """Every check, in the order in which a run would meet them; no hooks without a vLLM."""
    yield plugin_check()
    yield _allow_list()
    vllm = _vllm()
    yield vllm
    if vllm.state != "bad":
        yield from _hooks()
        yield look_up_check()
    yield folder_check(folder)
    yield from _lost_here(folder)


def plugin_check() -> Check:
    """Whether vLLM would find and load the entry point."""
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


def lets_in(listed: str | None) -> bool:
    """Whether a VLLM_PLUGINS of this value lets wstrace in; without one all plugins load."""
    return listed is None or "wstrace" in listed.split(",")


def _allow_list() -> Check:
    listed = os.environ.get("VLLM_PLUGINS")
    if listed is None:
        return Check("VLLM_PLUGINS", "ok", "unset, all plugins load")
    if lets_in(listed):
        return Check("VLLM_PLUGINS", "ok", f"lists wstrace ({listed})")
    return Check(
        "VLLM_PLUGINS",
        "warn",
        f"is {listed!r}, which keeps wstrace out",
        "`wstrace run` adds it (vLLM's compile cache key changes); else add it yourself.",
    )


def _vllm() -> Check:
    found = installed_vllm()
    if found is not None or find_spec("vllm") is not None:
        taken = release_of(found).taken_for
        return Check("vLLM", "warn" if taken else "ok", taken or found or "")
    advice = "Install wstrace into vLLM's environment and run it there; a report needs no vLLM."
    return Check("vLLM", "bad", "not installed here", advice)


def _hooks() -> Iterator[Check]:
    """One line a place whose hooks all fit, one line a hook that would stand down."""
    from wstrace.cli import fit

    for place in fit.places():
        wrong = fit.misfits(place)
        yield from (_misfit(found) for found in wrong)
        if not wrong:
            yield Check(place.name, "ok", f"{_methods(len(place.hooks))} as known")


def look_up_check() -> Check:
    """Whether seen requests would be looked up in C, and why not."""
    from wstrace.recorder.hooks.native import NotUsedError, extension
    from wstrace.recorder.settings import read_settings

    if not read_settings().native:
        return Check("seen requests", "ok", "looked up in Python (WSTRACE_NATIVE)")
    try:
        module = extension()
    except NotUsedError as why:
        return Check("seen requests", "ok", f"looked up in Python ({why})")
    return Check("seen requests", "ok", f"looked up in C (wstrace-native {module.__version__})")


def _methods(count: int) -> str:
    return f"all {count} methods are" if count > 1 else "the method is"


def _misfit(found: Fit) -> Check:
    """A missing worker class may be another platform's; a missing manager is the end."""
    if found.hook:
        advice = "This hook stands down and the gate is inconclusive: look for a newer wstrace."
        return Check(found.hook, "bad", f"{found.why} ({found.place.name})", advice, found.hook)
    if found.place.must:
        advice = "This vLLM has no workspace (0.13+), or a newer wstrace is needed."
        return Check(found.place.name, "bad", found.why, advice)
    return Check(found.place.name, "warn", found.why)


def folder_check(folder: Path) -> Check:
    """Whether a trace could be written in `folder`, on trial."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_BLOCK))  # a full disk makes files, and fills none
            file.flush()
            return Check("trace folder", "ok", f"{folder.resolve()} can be written")
    except OSError as error:
        return Check(
            "trace folder",
            "bad",
            f"{folder} cannot be written: {error.strerror}",
            "Give another folder with -o.",
        )


def _lost_here(folder: Path) -> Iterator[Check]:
    """Why recording stood down in runs that left their trace in this folder."""
    from wstrace.errors import WstraceError
    from wstrace.trace.reader import lost_tails, runs_in

    try:
        runs = runs_in(folder)
    except WstraceError:  # it holds something else, or nothing that can be read
        return
    for run in runs:
        for told in lost_tails(folder, run):
            yield Check(
                "earlier run", "warn", f"{run}: {told}", "Make room, then record again."
            )
