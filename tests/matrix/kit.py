"""What scenarios are made of. Each runs in a process of its own and returns plain facts.

A scenario writes its trace to the folder that it is given; the tests read both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.matrix.harness import MIB, Engine, ask, call, workspace
from wstrace.recorder.state.process import Live

Facts = dict[str, Any]
graphs: list[Any] = []
SCENARIOS: dict[str, Callable[[Path], Facts]] = {}


def scenario(function: Callable[[Path], Facts]) -> Callable[[Path], Facts]:
    """Register a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


def caught(call: Callable[[], Any]) -> str:
    """The text of the AssertionError that `call` raises, "" when it raises none."""
    try:
        call()
    except AssertionError as error:
        return str(error)
    return ""


def arenas() -> list[int]:
    """Bytes of each slot of the current manager, 0 where there is no arena."""
    manager = workspace().current_workspace_manager()
    return [0 if t is None else t.numel() for t in manager._current_workspaces]


def addresses() -> list[int]:
    """Addresses of the arenas that exist."""
    manager = workspace().current_workspace_manager()
    return [t.data_ptr() for t in manager._current_workspaces if t is not None]


def lock() -> None:
    """Lock as `capture_model` does."""
    workspace().lock_workspace()


def captured(request: Callable[[], Any]) -> Any:
    """The graph in which `request` is made; it captures nothing, there is no GPU."""
    graph = torch.cuda.CUDAGraph()
    graphs.append(graph)
    call(graph, "capture_begin")
    request()
    call(graph, "capture_end")
    return graph


def release_graphs() -> None:
    """Drop all graphs, as vLLM does before it captures anew."""
    for graph in graphs:
        call(graph, "reset")
    graphs.clear()


@dataclass
class Kit:
    """A scripted engine: 1 MiB in profile_run, captured and locked in capture_model."""

    live: Live
    locks: bool = True
    script: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def engine(self, slots: tuple[int, ...] = (), v2: bool = False, **script: Any) -> Engine:
        """The started engine."""
        plain = {"profile_run": lambda: ask(MIB), "capture_model": self.capture_model}
        return Engine(plain | script, v2=v2, slots=slots).start()

    def capture_model(self) -> None:
        """One graph, then the lock where this engine locks."""
        captured(lambda: ask(MIB))
        if self.locks:
            lock()
