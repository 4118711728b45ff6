"""The guard's growth on a real device: what captured graphs hold stays theirs. Run on the host:

python -m pytest -p no:cacheprovider tests/gpu
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from wstrace.recorder.hooks import growth
from wstrace.recorder.hooks.captures import hook_captures
from wstrace.recorder.hooks.production import wrap_guard
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
MIB = 1 << 20


def vllms_own(manager: Any, size: int) -> Any:
    """What vLLM's method does: grow by freeing first, or refuse once locked."""
    if manager._current_workspaces[0].numel() < size:
        assert not manager._locked, "Workspace is locked"
        manager._current_workspaces[0] = None
        manager._current_workspaces[0] = torch.empty(size, dtype=torch.uint8, device="cuda")
    return manager._current_workspaces[0]


class WorkspaceManager:
    """vLLM's manager, as far as the guard looks at it: one slot with 4 MiB."""

    def __init__(self, live: Live | None) -> None:
        self._device, self._num_ubatches, self._locked = torch.device("cuda"), 1, False
        self._current_workspaces = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")]
        self.ensure = wrap_guard(live)(vllms_own) if live is not None else vllms_own

    def _get_workspace_id(self) -> int:
        return 0

    def get_simultaneous(self, size: int) -> Any:
        return self.ensure(self, size)[:size]


@pytest.fixture(autouse=True)
def nothing_cached() -> None:
    """What an earlier test freed would be handed out before what a growth here frees."""
    gc.collect()
    torch.cuda.empty_cache()


def guarded(**settings: Any) -> Live:
    live = Live(Settings(None, "gpu", guard=True, **settings))
    live.worker.current = SimpleNamespace(device=torch.device("cuda"))
    hook_captures(live)
    return live


@pytest.fixture
def live() -> Iterator[Live]:
    torch.zeros(1, device="cuda")
    made = guarded()
    yield made
    made.hooks.remove()
    growth._kept.clear()


def captured(manager: Any, source: Any, result: Any) -> Any:
    """A graph that computes through the arena: result = source + 1, by way of the scratch."""
    size = source.numel()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch = manager.get_simultaneous(size)
        scratch.copy_(source)
        scratch.add_(1)
        result.copy_(scratch)
    return graph


def others(count: int = 64) -> list[Any]:
    """What a server allocates next: it gets the memory that was freed.

    More than 1 MiB each, or the allocator takes them from another pool.
    """
    return [torch.full((2 * MIB,), 99, dtype=torch.uint8, device="cuda") for _ in range(count)]


def setting(live: Live | None) -> tuple[Any, Any, Any, Any]:
    manager = WorkspaceManager(live)
    if live is not None:
        live.manager.made(manager)
    manager.get_simultaneous(4 * MIB)
    source = torch.randint(0, 200, (4 * MIB,), dtype=torch.uint8, device="cuda")
    result = torch.zeros_like(source)
    graph = captured(manager, source, result)
    manager._locked = live is not None
    return manager, source, result, graph


def test_a_graph_replays_after_a_growth_and_nobody_elses_memory_changes(live: Live) -> None:
    manager, source, result, graph = setting(live)
    old = manager._current_workspaces[0].data_ptr()
    assert manager.get_simultaneous(8 * MIB).numel() == 8 * MIB
    assert manager._current_workspaces[0].data_ptr() != old
    assert growth.kept_bytes() == 4 * MIB
    filled = others()
    for _ in range(3):
        source.random_(0, 200)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, source + 1)
        assert all(bool((tensor == 99).all()) for tensor in filled)


def test_the_same_without_the_guard_writes_into_memory_that_is_not_the_graphs() -> None:
    """Else the test above could not fail: vLLM's own growth frees what the graph holds."""
    # `kept`: were the source freed, the new arena would take its place and the old one's.
    manager, *kept, graph = setting(None)
    manager.get_simultaneous(8 * MIB)
    filled = others()
    graph.replay()
    torch.cuda.synchronize()
    assert len(kept) == 2
    assert not all(bool((tensor == 99).all()) for tensor in filled)


def test_a_view_that_was_taken_before_the_capture_keeps_its_arena(live: Live) -> None:
    """The graph makes no request of its own: it was given the view."""
    manager = WorkspaceManager(live)
    live.manager.made(manager)
    view = manager.get_simultaneous(4 * MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view.add_(1)
    del view
    manager._locked = True
    manager.get_simultaneous(8 * MIB)
    assert growth.kept_bytes() == 4 * MIB
    filled = others()
    graph.replay()
    torch.cuda.synchronize()
    assert all(bool((tensor == 99).all()) for tensor in filled)


@pytest.mark.parametrize("seen", [True, False], ids=["a capture that is seen", "or is not"])
def test_while_a_graph_is_captured_vllm_refuses(live: Live, seen: bool) -> None:
    if not seen:
        live.hooks.remove()
    manager = WorkspaceManager(live)
    live.manager.made(manager)
    manager.get_simultaneous(4 * MIB)
    manager._locked = True
    graph, some = torch.cuda.CUDAGraph(), torch.zeros(8, device="cuda")
    with torch.cuda.graph(graph):
        some.add_(1)  # PyTorch warns of a graph without work
        with pytest.raises(AssertionError, match="locked"):
            manager.get_simultaneous(8 * MIB)


def test_an_arena_beside_another_streams_work_goes_only_after_it(live: Live) -> None:
    """A growth that no graph holds: the side stream still reads the old arena."""
    manager = WorkspaceManager(live)
    live.manager.made(manager)
    scratch = manager.get_simultaneous(4 * MIB)
    manager._locked = True
    scratch.fill_(7)
    side, result = torch.cuda.Stream(), torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        result.copy_(scratch)
    del scratch
    manager.get_simultaneous(8 * MIB)
    assert growth.kept_bytes() == 0
    others()
    torch.cuda.synchronize()
    assert bool((result == 7).all())


def test_more_than_the_device_has_leaves_vllms_error_and_the_arena(live: Live) -> None:
    manager, source, result, graph = setting(live)
    with pytest.raises(AssertionError, match="locked"):
        manager.get_simultaneous(torch.cuda.mem_get_info()[1])
    assert "are free" in live.guard.why
    assert manager._current_workspaces[0].numel() == 4 * MIB
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, source + 1)
