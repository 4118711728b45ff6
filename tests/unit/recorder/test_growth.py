"""`--on-growth grow`, on a manager made here; the real ones are in tests/matrix."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.recorder.tensors import Tensor
from wstrace.recorder.hooks import growth
from wstrace.recorder.settings import GrowthPolicy, Settings
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import workspace
from wstrace.trace.records import Slot


class Manager(SimpleNamespace):
    """A manager with two ubatches of 1000 bytes."""

    def __init__(self) -> None:
        super().__init__(
            _num_ubatches=2,
            _locked=True,
            _device="cpu",
            _current_workspaces=[Tensor(1000), Tensor(1000)],
        )

    @property
    def sizes(self) -> list[int]:
        return [t.size for t in self._current_workspaces]


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    torch = ModuleType("torch")
    torch.uint8 = "uint8"  # type: ignore[attr-defined]
    torch.empty = lambda shape, **how: Tensor(shape[0])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(growth, "_kept", [])
    return Manager()


def recorder(tmp_path: Path, policy: GrowthPolicy = "grow") -> Live:
    return Live(Settings(str(tmp_path), "run", on_growth=policy))


def hold(live: Live, manager: Manager) -> None:
    """A serving graph that replays from the first arena of slot (0, 0)."""
    live.arenas.changes(manager)
    live.capture.begin()
    live.capture.requested(Slot(), live.arenas.generation(0))
    live.capture.end(throwaway=False)


def test_the_slot_that_asked_grows_and_nothing_is_kept_without_graphs(
    manager: Manager, tmp_path: Path
) -> None:
    live = recorder(tmp_path)
    assert growth.try_grow(live, manager, 1, 5000) == 0
    assert manager.sizes == [1000, 5000]


def test_up_to_0_18_every_smaller_slot_grows(manager: Manager, tmp_path: Path) -> None:
    live = recorder(tmp_path)
    live.manager.resizes_all_ubatches = True
    manager._current_workspaces[0] = Tensor(9000)
    assert growth.try_grow(live, manager, 1, 5000) == 0
    assert manager.sizes == [9000, 5000]


def test_an_arena_that_a_graph_holds_is_kept(manager: Manager, tmp_path: Path) -> None:
    live = recorder(tmp_path)
    hold(live, manager)
    old = manager._current_workspaces[0]
    assert growth.try_grow(live, manager, 0, 5000) == 1000
    assert growth._kept == [old]
    live.arenas.changes(manager)
    assert growth.try_grow(live, manager, 0, 7000) == 1000


def test_no_memory_leaves_everything_as_it_was(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(shape: Any, **how: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sys.modules["torch"], "empty", full)
    live = recorder(tmp_path)
    assert growth.try_grow(live, manager, 0, 5000) is None
    assert manager.sizes == [1000, 1000]


def test_the_manager_allocates_in_its_own_context(manager: Manager, tmp_path: Path) -> None:
    from contextlib import contextmanager

    entered = []

    @contextmanager
    def pool() -> Any:
        entered.append(True)
        yield

    manager._alloc_context = pool
    growth.try_grow(recorder(tmp_path), manager, 0, 5000)
    assert entered == [True]


def test_grow_steps_in_when_locked_or_when_a_graph_serves(
    manager: Manager, tmp_path: Path
) -> None:
    live = recorder(tmp_path)
    assert growth.may_grow(live, manager)
    manager._locked = False
    assert not growth.may_grow(live, manager)
    hold(live, manager)
    assert growth.may_grow(live, manager)


def test_grow_never_steps_in_while_capturing_or_under_raise(
    manager: Manager, tmp_path: Path
) -> None:
    live = recorder(tmp_path)
    live.capture.begin()
    assert not growth.may_grow(live, manager)
    assert not growth.may_grow(recorder(tmp_path, "raise"), manager)


def test_which_rule_of_growth_applies_is_read_from_the_method() -> None:
    def every(self: Any, required_bytes: int) -> Any:
        return range(self._num_ubatches)

    def own(self: Any, required_bytes: int) -> Any:
        return self._current_workspaces[required_bytes]

    assert workspace.resizes_all_ubatches(every)
    assert not workspace.resizes_all_ubatches(own)
    assert not workspace.resizes_all_ubatches(None)
