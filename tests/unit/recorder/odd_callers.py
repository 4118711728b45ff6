"""A refused request from a place where callers are rarely looked for; run as a script.

python -m tests.unit.recorder.odd_callers FOLDER

Writes a trace folder a place, and prints what was asked of the layer in one of them.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.matrix.harness import ask, workspace
from tests.matrix.stand_ins import load_installed
from tests.unit.recorder.injection import start
from wstrace.recorder import install, plugin

REFUSED = 1 << 16


class Layer:
    """Somebody's layer, whose attributes tell when they are asked for."""

    asked: list[str] = []  # noqa: RUF012

    def __getattribute__(self, name: str) -> Any:
        if name not in ("forward", "ask"):
            type.__getattribute__(Layer, "asked").append(name)
        return object.__getattribute__(self, name)

    def forward(self) -> None:
        ask(REFUSED)


def in_a_fork() -> None:
    """vLLM's workers may fork; this child was forked after the lock."""
    pid = os.fork()
    if pid == 0:
        refused()
        os._exit(0)
    os.waitpid(pid, 0)


def in_a_fork_under_a_held_lock() -> None:
    """Another thread held the recorder's lock while this process forked."""
    live, held, done = install.current(), threading.Event(), threading.Event()
    assert live is not None

    def hold() -> None:
        with live.counters.lock:
            held.set()
            done.wait()

    threading.Thread(target=hold).start()
    held.wait()
    in_a_fork()
    done.set()


def as_a_threads_first_function() -> None:
    """No Python frame stands above the manager's method."""
    ended = threading.Event()
    sys.unraisablehook = lambda error: ended.set()
    manager = workspace().current_workspace_manager()
    _thread.start_new_thread(manager.get_simultaneous, (((REFUSED,), torch.uint8),))
    ended.wait()


def in_a_signal_handler() -> None:
    signal.signal(signal.SIGUSR1, lambda *a: refused())
    os.kill(os.getpid(), signal.SIGUSR1)


def in_a_layer_with_its_own_getattribute() -> None:
    try:
        Layer().forward()
    except AssertionError:
        return


def of_a_second_manager() -> None:
    """The first one answered the same request, from the same line, a moment before."""
    first = workspace().current_workspace_manager()
    second = _second_manager(512)
    ask_of(first, 1024)
    try:
        ask_of(second, 1024)
    except AssertionError:
        return
    raise SystemExit("vLLM did not refuse")


def _second_manager(size: int) -> Any:
    """Beside vLLM's own: warmed up by a request of `size` bytes, and locked."""
    made = workspace().WorkspaceManager(torch.device("cpu"))
    ask_of(made, size)
    made.lock()
    return made


def ask_of(manager: Any, size: int) -> None:
    manager.get_simultaneous(((size,), torch.uint8))


def refused() -> None:
    """Ask for more than the arena; vLLM refuses."""
    try:
        ask(REFUSED)
    except AssertionError:
        return
    raise SystemExit("vLLM did not refuse")


PLACES = (
    refused,
    in_a_fork,
    in_a_fork_under_a_held_lock,
    as_a_threads_first_function,
    in_a_signal_handler,
    in_a_layer_with_its_own_getattribute,
    of_a_second_manager,
)


def two_managers(folder: Path) -> None:
    """A second manager is made and locked while the first one warms up; nobody is refused."""
    held: list[Any] = []

    def warm_up() -> None:
        held.append(_second_manager(512))
        ask(1024)
        workspace().lock_workspace()

    record(lambda: ask_of(held[0], 256), folder, warm_up)


def record(
    place: Callable[[], None], folder: Path, warm_up: Callable[[], None] | None = None
) -> None:
    """One engine whose only step asks from `place`; its trace goes to `folder`."""
    folder.mkdir()
    os.environ["WSTRACE_DIR"] = str(folder)
    plugin.register()
    engine = start(warm_up)
    engine.script["execute_model"] = place
    engine.step(a=4)
    engine.wrapper.worker.shutdown()
    install.uninstall()
    workspace().reset_workspace_manager()


if __name__ == "__main__":
    load_installed()
    for place in PLACES:
        record(place, Path(sys.argv[1]) / place.__name__)
    two_managers(Path(sys.argv[1]) / two_managers.__name__)
    print(Layer.asked)
