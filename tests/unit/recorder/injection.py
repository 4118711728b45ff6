"""Every function of the recorder is made to raise in turn, under a real WorkspaceManager.

python -m tests.unit.recorder.injection FOLDER

Prints JSON: the functions tried, those with which vLLM answered otherwise than alone (`wrong`),
and those, broken after attaching, with which the trace lacks the refused request (`lost`). With
the guard on vLLM may also serve what it refuses alone (`served` are its answers then). The
functions are found by inspection, so that a new one is tried without being named here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import pkgutil
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Literal

import torch

from tests.matrix.harness import Engine, ask, other_ask, workspace
from tests.matrix.stand_ins import load_installed
from wstrace import recorder
from wstrace.recorder import install, plugin

# The guard, and the note that it writes: what catches must not be what raises. `install` and
# `register` are what attaches; `uninstall` is asked for by `wstrace.record`, outside vLLM.
GUARD = {
    "wstrace.recorder.guard.guarded",
    "wstrace.recorder.state.output.TraceOutput.complain",
    "wstrace.recorder.plugin.register",
    "wstrace.recorder.install.uninstall",
}


Where = tuple[Any, str]
"""An owner and the name of its attribute."""


class InjectedError(Exception):
    """Raised inside the recorder; vLLM must never see it."""


@functools.cache
def modules() -> list[ModuleType]:
    """All modules of wstrace.recorder."""
    found = pkgutil.walk_packages(recorder.__path__, "wstrace.recorder.")
    return [importlib.import_module(info.name) for info in found]


def functions() -> dict[str, Where]:
    """Full name to (owner, attribute) of each function that is written in the recorder."""
    found: dict[str, Where] = {}
    for module in modules():
        for name, member in vars(module).items():
            if getattr(member, "__module__", None) != module.__name__:
                continue
            if isinstance(member, FunctionType):
                found[f"{module.__name__}.{name}"] = (module, name)
            elif inspect.isclass(member):
                found |= _methods(module.__name__, member)
    return {name: where for name, where in found.items() if name not in GUARD}


def _methods(module: str, owner: type) -> dict[str, Where]:
    return {
        f"{module}.{owner.__name__}.{name}": (owner, name)
        for name, member in vars(owner).items()
        if isinstance(member, FunctionType) and member.__code__.co_filename.endswith(".py")
    }


@contextmanager
def broken(owner: Any, name: str) -> Iterator[None]:
    """Inside the block the function raises, under each name that some module gave it."""
    original = vars(owner)[name]

    def injected(*args: Any, **kwargs: Any) -> Any:
        raise InjectedError(name)

    places = [(owner, name)]
    if isinstance(owner, ModuleType):
        places += [
            (module, alias)
            for module in modules()
            for alias, member in vars(module).items()
            if member is original and module is not owner
        ]
    for where, alias in places:
        setattr(where, alias, injected)
    try:
        yield
    finally:
        for where, alias in places:
            setattr(where, alias, original)


def start(warm_up: Callable[[], None] | None = None) -> Engine:
    """An engine whose warm-up asks, grows and locks, by `warm_up` where one is given."""

    def capture() -> None:
        ask(1024)
        workspace().lock_workspace()

    script = {"profile_run": lambda: ask(512), "capture_model": warm_up or capture}
    return Engine(script).start()


def answer(function: Callable[[], Any]) -> str:
    """What vLLM's caller sees of one call: bytes of the view, or the error and its text."""
    try:
        found = function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return str(found.numel()) if isinstance(found, torch.Tensor) else type(found).__name__


def resource() -> Any:
    manager = workspace().current_workspace_manager()
    return manager.get_persistent_resource(("made late", 1), lambda: torch.zeros(4))


def from_a_thread() -> str:
    """The manager's own method as the first function of a thread."""
    seen: list[str] = []
    ask_it = workspace().current_workspace_manager().get_simultaneous
    thread = threading.Thread(target=lambda: None)
    thread.run = lambda: seen.append(answer(lambda: ask_it(((256,), torch.uint8))))  # type: ignore[method-assign]
    thread.start()
    thread.join()
    return seen[0]


def _note(seen: list[str], script: Callable[[], Any]) -> None:
    seen.append(answer(script))


def serve(engine: Engine) -> list[str]:
    """Steps that fit, that are refused, and that come after: every hook is passed."""
    seen: list[str] = []
    scripts: tuple[Callable[[], Any], ...] = (
        lambda: ask(768),
        lambda: ask(1 << 16),
        resource,
        lambda: other_ask(256),
    )
    for script in scripts:
        engine.script["execute_model"] = functools.partial(_note, seen, script)
        engine.step(a=4)
        engine.wrapper.worker.sample_tokens(None)
    engine.wrapper.worker.execute_dummy_batch()
    seen.append(from_a_thread())
    engine.wrapper.worker.sleep()
    engine.wrapper.worker.wake_up()
    workspace().unlock_workspace()
    seen.append(answer(lambda: ask(1 << 17)))
    engine.wrapper.worker.shutdown()
    return seen


def alone() -> list[str]:
    """The answers of vLLM without the recorder."""
    try:
        return serve(start())
    finally:
        workspace().reset_workspace_manager()


def has_the_refusal(folder: Path) -> bool:
    """Whether a failure of the arena with its 65,536 bytes stands in the trace.

    Or, where that could not be written, the header's last word of a refused request.
    """
    lines = b"".join(file.read_bytes() for file in folder.glob("*.jsonl")).splitlines()
    told = [line for line in lines if line.startswith(b'{"t":"failure"')]
    word = b"vLLM refused a request after that"
    return any(b'"required":65536' in line for line in told) or any(
        word in line for line in lines if line.startswith(b'{"t":"header"')
    )


When = Literal["before", "after"]
"""Whether a function is broken before the recorder attaches, or once the engine has started."""


def answers(owner: Any, name: str, when: When) -> list[str]:
    """What vLLM answers while one of the recorder's functions is broken."""
    if when == "before":
        with broken(owner, name):
            plugin.register()
            return serve(start())
    plugin.register()
    engine = start()
    with broken(owner, name):
        return serve(engine)


def recorded(owner: Any, name: str, folder: Path, when: When) -> list[str]:
    """The answers with the recorder, one of its functions broken before or after attaching."""
    os.environ["WSTRACE_DIR"] = str(folder)
    try:
        seen = answers(owner, name, when)
        whole = when == "before" or has_the_refusal(folder)
        return seen if whole else [*seen, "lost"]
    except Exception as error:
        return [f"the engine died: {type(error).__name__}: {error}"]
    finally:
        install.uninstall()
        workspace().reset_workspace_manager()
        shutil.rmtree(folder, ignore_errors=True)


def guarded(owner: Any, name: str, when: When) -> list[str]:
    """The answers with `WSTRACE_GUARD` alone, one function broken before or after attaching."""
    os.environ["WSTRACE_GUARD"] = "1"
    try:
        return answers(owner, name, when)
    except Exception as error:
        return [f"the engine died: {type(error).__name__}: {error}"]
    finally:
        install.uninstall()
        workspace().reset_workspace_manager()
        del os.environ["WSTRACE_GUARD"]


def called(run: Callable[[], object], found: dict[str, Where]) -> list[tuple[str, When]]:
    """Each of the functions that a run calls, and when to break it: to break another one, or
    this one when it is not called any more, changes nothing.

    One that only serving calls is broken after attaching: the hooks find it by its name then.
    """
    seen: dict[When, set[CodeType]] = {"before": set(), "after": set()}
    now: When = "before"

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal now
        if event == "call":
            now = "after" if frame.f_code is serve.__code__ else now
            seen[now].add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [
        (label, when)
        for label, (owner, name) in found.items()
        for when, codes in seen.items()
        if inspect.unwrap(vars(owner)[name]).__code__ in codes
    ]


NOTHING: Where = (SimpleNamespace(nothing=None), "nothing")


def main(folder: Path) -> None:
    """Try all; see the module docstring."""
    load_installed()
    plain = alone()
    found = functions()
    folder.mkdir()
    recording = called(lambda: recorded(*NOTHING, folder, "after"), found)
    guarding = called(lambda: guarded(*NOTHING, "after"), found)
    wrong, lost = {}, []
    for label, when in recording:
        folder.mkdir()
        seen = recorded(*found[label], folder, when)
        if seen[-1] == "lost":
            lost.append(label)
        if seen[: len(plain)] != plain:
            wrong[f"{label} ({when})"] = seen
    os.environ.pop("WSTRACE_DIR")
    served = guarded(*NOTHING, "after")
    for label, when in guarding:
        seen = guarded(*found[label], when)
        pairs = zip(seen, plain, served, strict=False)
        if len(seen) != len(plain) or any(s not in (p, g) for s, p, g in pairs):
            wrong[f"{label} (guard, {when})"] = seen
    told = {"plain": plain, "served": served, "tried": [*recording, *guarding]}
    json.dump({**told, "wrong": wrong, "lost": lost}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
