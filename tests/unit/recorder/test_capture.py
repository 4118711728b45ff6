"""Which arena generations captured graphs hold."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wstrace.recorder.hooks.captures import hook_captures
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.capture import CaptureState
from wstrace.recorder.state.process import Live
from wstrace.trace.records import Capture, Slot

SLOT, OTHER = Slot(), Slot(0, 1)


def captured(state: CaptureState, *generations: int, throwaway: bool = False) -> Capture:
    state.begin()
    for generation in generations:
        state.requested(SLOT, generation)
    return state.end(throwaway)


def test_a_graph_holds_the_generation_of_its_last_request() -> None:
    state = CaptureState()
    record = captured(state, 1, 2)
    assert (record.slots, record.generations) == ([SLOT], [2])
    assert state.holds(SLOT, 2)
    assert not state.holds(SLOT, 1)
    assert not state.holds(OTHER, 2)


def test_a_graph_without_requests_holds_nothing() -> None:
    state = CaptureState()
    assert captured(state).slots == []
    assert not state.holds(SLOT, 0)


def test_requests_outside_a_capture_are_not_held() -> None:
    state = CaptureState()
    captured(state, 1)
    state.requested(SLOT, 2)
    assert not state.holds(SLOT, 2)


def test_a_throwaway_graph_never_serves() -> None:
    state = CaptureState()
    assert captured(state, 1, throwaway=True).throwaway
    assert not state.any_serving_graph
    assert not state.holds(SLOT, 1)


def test_a_released_graph_holds_nothing_any_more() -> None:
    state = CaptureState()
    record = captured(state, 1)
    assert state.release(record.graph)
    assert not state.release(record.graph)
    assert not state.any_serving_graph


def test_where_captures_cannot_be_seen_every_generation_counts_as_held() -> None:
    assert CaptureState(reliable=False).holds(SLOT, 7)


class Graph:
    """Stands for torch.cuda.CUDAGraph."""

    def capture_begin(self, pool: Any = None) -> None: ...

    def capture_end(self) -> None: ...

    def reset(self) -> None: ...


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(CUDAGraph=Graph)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    made = Live(Settings(str(tmp_path), "run"))
    yield made
    made.hooks.remove()
    made.output.writer.close()


def test_reset_and_collection_both_release_a_graph_once(live: Live) -> None:
    hook_captures(live)
    graphs = [Graph(), Graph()]
    for graph in graphs:
        graph.capture_begin(pool=3)
        live.capture.requested(SLOT, 1)
        graph.capture_end()
    assert sorted(live.capture.held) == [1, 2]
    graphs[0].reset()
    assert sorted(live.capture.held) == [2]
    del graph
    graphs.clear()
    gc.collect()
    assert not live.capture.any_serving_graph


def test_a_capture_that_fails_ends_all_the_same(live: Live) -> None:
    class Failing(Graph):
        def capture_end(self) -> None:
            raise RuntimeError("capture was invalidated")

    sys.modules["torch"].cuda.CUDAGraph = Failing
    hook_captures(live)
    graph = Failing()
    graph.capture_begin()
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert not live.capture.active


def test_a_torch_without_graphs_stands_down_and_trusts_no_generation(live: Live) -> None:
    sys.modules["torch"].cuda.CUDAGraph = None
    hook_captures(live)
    assert live.capture.reliable is False
    assert live.hooks.states["CUDAGraph.capture_begin"].set is False
