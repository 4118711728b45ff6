"""Order of real CUDA streams, as the watch sees it. Needs a GPU; run it on the host:

python -m pytest -p no:cacheprovider tests/gpu
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.trace.records import Ordering

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class WorkspaceManager:
    """vLLM's manager, as far as the hot path looks at it."""

    def __init__(self, live: Live) -> None:
        self._current_workspaces = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda")]
        self._locked = True
        self.ensure = wrap_seen(live)(lambda manager, size: manager._current_workspaces[0])

    def get_simultaneous(self, size: int) -> Any:
        return self.ensure(self, size)


class Rig:
    """Two layers of one slot, and a side stream."""

    def __init__(self, folder: Path) -> None:
        self.live = Live(Settings(directory=str(folder), run="r"))
        self.records: list[Any] = []
        self.live.output.write = self.records.append  # type: ignore[assignment, method-assign]
        self.manager = WorkspaceManager(self.live)
        self.live.phases.current = "serving"
        self.side = torch.cuda.Stream()
        self.fork, self.join = torch.cuda.Event(), torch.cuda.Event()

    def attention(self) -> None:
        self.manager.get_simultaneous(512).fill_(1)

    def indexer(self) -> None:
        self.manager.get_simultaneous(512).fill_(2)

    def steps(self, body: Callable[[], None], times: int = 3) -> list[bool]:
        for _ in range(times):
            self.live.steps.real += 1
            body()
        torch.cuda.synchronize()
        return [r.ordered for r in self.records if isinstance(r, Ordering)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    torch.zeros(1, device="cuda")
    rig = Rig(tmp_path)
    yield rig
    rig.live.hooks.remove()


def test_events_both_ways(rig: Rig) -> None:
    def step() -> None:
        rig.attention()
        rig.fork.record()
        with torch.cuda.stream(rig.side):
            rig.fork.wait()
            rig.indexer()
            rig.join.record()
        rig.join.wait()

    assert set(rig.steps(step)) == {True}


def test_no_event(rig: Rig) -> None:
    def step() -> None:
        rig.attention()
        with torch.cuda.stream(rig.side):
            rig.indexer()

    assert False in rig.steps(step)


def test_a_fork_before_the_request_of_the_main_stream(rig: Rig) -> None:
    """vLLM's maybe_execute_in_parallel when both functions ask in one slot."""

    def step() -> None:
        rig.fork.record()
        rig.attention()
        with torch.cuda.stream(rig.side):
            rig.fork.wait()
            rig.indexer()
            rig.join.record()
        rig.join.wait()

    assert False in rig.steps(step)


def test_wait_stream_both_ways(rig: Rig) -> None:
    def step() -> None:
        rig.attention()
        rig.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(rig.side):
            rig.indexer()
        torch.cuda.current_stream().wait_stream(rig.side)

    assert set(rig.steps(step)) == {True}


@pytest.mark.parametrize("how", ["stream", "device", "event"])
def test_the_host_waits(rig: Rig, how: str) -> None:
    def wait(stream: Any) -> None:
        if how == "stream":
            stream.synchronize()
        elif how == "device":
            torch.cuda.synchronize()
        else:
            event = torch.cuda.Event()
            event.record(stream)
            event.synchronize()

    def step() -> None:
        rig.attention()
        wait(torch.cuda.current_stream())
        with torch.cuda.stream(rig.side):
            rig.indexer()
        wait(rig.side)

    assert set(rig.steps(step)) == {True}


@pytest.mark.parametrize("joined", [True, False])
def test_while_a_graph_is_captured(rig: Rig, joined: bool) -> None:
    """A fork that is never joined cannot be captured; one that comes too early can."""

    def body() -> None:
        if not joined:
            rig.fork.record()
        rig.attention()
        if joined:
            rig.fork.record()
        with torch.cuda.stream(rig.side):
            rig.fork.wait()
            rig.indexer()
            rig.join.record()
        rig.join.wait()

    rig.steps(body, 1)
    graph = torch.cuda.CUDAGraph()
    rig.live.capture.active = True
    with torch.cuda.graph(graph):
        body()
    rig.live.capture.active = False
    found = [r.ordered for r in rig.records if isinstance(r, Ordering) and r.capturing]
    assert (set(found) == {True}) is joined
