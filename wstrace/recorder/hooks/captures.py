"""Hooks on `torch.cuda.CUDAGraph`: when graphs are captured, reset and collected.

The hot path pays nothing for them. The hot counters are forgotten when a capture begins: each
request made while capturing is then novel and its generation is noted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from wstrace.recorder.guard import guarded
from wstrace.recorder.state.process import Live
from wstrace.trace.records import Capture, Slot
from wstrace.vllm import methods


def hook_captures(live: Live) -> None:
    """Wrap CUDAGraph's methods; where that fails the hook stands down."""
    import torch

    graph_class = getattr(torch.cuda, "CUDAGraph", None)
    if not isinstance(graph_class, type):
        live.capture.reliable = False
        live.hooks.stand_down("CUDAGraph.capture_begin", "torch.cuda.CUDAGraph is no class")
        return
    numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    makers = {
        "capture_begin": _begin(live, numbers),
        "capture_end": _end(live),
        "reset": _reset(live, numbers),
    }
    is_set = {k.name: live.hooks.wrap(graph_class, k, makers[k.name]) for k in methods.GRAPH}
    live.capture.reliable = is_set["capture_begin"] and is_set["capture_end"]


def began(live: Live) -> int:
    """A capture starts: forget the hot counters so that its requests are seen."""
    live.forget_hot()
    return live.capture.begin()


def ended(live: Live) -> None:
    """A capture ended: write which generations it holds."""
    throwaway = live.phases.current == "graph-estimate"
    live.output.write(live.capture.end(throwaway, _present(live)))
    live.forget_hot()


def _present(live: Live) -> dict[Slot, int]:
    manager = live.manager.current
    present: dict[Slot, int] = guarded(
        live, "capture", live.arenas.present, manager, default={}
    )
    return present


def released(live: Live, graph: int) -> None:
    """A graph is gone: its generations are free to move again."""
    if live.capture.release(graph):
        live.output.write(Capture(event="release", graph=graph))


def _begin(live: Live, numbers: Any) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            guarded(live, "capture", _number, live, numbers, self)
            return original(self, *args, **kwargs)

        return capture_begin

    return make


def _number(live: Live, numbers: Any, graph: Any) -> None:
    """Give the graph a number, and learn when it is collected."""
    numbers[graph] = number = began(live)
    weakref.finalize(graph, guarded, live, "capture", released, live, number).atexit = False


def _was_reset(live: Live, numbers: Any, graph: Any) -> None:
    number = numbers.get(graph)
    if number is not None:
        released(live, number)


def _end(live: Live) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                guarded(live, "capture", ended, live)

        return capture_end

    return make


def _reset(live: Live, numbers: Any) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
            guarded(live, "capture", _was_reset, live, numbers, self)
            return original(self, *args, **kwargs)

        return reset

    return make
