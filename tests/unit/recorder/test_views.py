"""`--check-views`: what outlives its request, on a manager made here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.recorder.tensors import Tensor
from wstrace.recorder.hooks import views as views_module
from wstrace.recorder.hooks.views import Views
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.trace.records import Record, Slot, View


class Rig:
    """A recorder, a manager of one slot, and requests made by hand."""

    def __init__(self, tmp_path: Path) -> None:
        self.live = Live(Settings(str(tmp_path), "run", check_views=True))
        self.records: list[Record] = []
        self.live.output.write = self.records.append  # type: ignore
        self.manager = SimpleNamespace(_num_ubatches=1, _current_workspaces=[Tensor(4096)])
        self.manager._get_workspace_id = lambda: 0
        self.live.manager.current = self.manager
        self.views = Views(self.live)
        self.live.arenas.changes(self.manager)

    def ask(self, size: int = 256) -> Tensor:
        import sys

        self.views.settle()
        view = Tensor(size)
        self.views.add(self.manager, [view], sys._getframe())
        return view

    def grow(self) -> None:
        self.manager._current_workspaces[0] = Tensor(9000)
        self.live.arenas.changes(self.manager)

    def next_step(self) -> None:
        self.live.steps.begin_dummy(1, "dummy")

    @property
    def told(self) -> list[View]:
        return [r for r in self.records if isinstance(r, View)]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_view_that_is_let_go_is_nothing_to_tell(rig: Rig) -> None:
    rig.ask()
    rig.next_step()
    rig.ask()
    assert rig.told == []


def test_a_local_variable_within_one_step_is_nothing_to_tell(rig: Rig) -> None:
    first = rig.ask()
    second = rig.ask()
    assert rig.told == []
    assert first.size == second.size


def test_a_view_kept_over_a_growth_pins_the_old_arena(rig: Rig) -> None:
    kept = rig.ask(512)
    rig.grow()
    rig.next_step()
    rig.ask()
    (told,) = rig.told
    assert (told.why, told.generation, told.now, told.bytes) == ("growth", 1, 2, kept.size)
    assert told.slot == Slot()


def test_a_view_kept_over_the_next_request_is_told_once(rig: Rig) -> None:
    kept = [rig.ask(512)]
    for _ in range(3):
        rig.ask()
        rig.next_step()
    rig.ask()
    assert [t.why for t in rig.told] == ["next request"]
    assert kept[0].size == rig.told[0].bytes


def test_the_last_view_of_a_slot_may_stay(rig: Rig) -> None:
    kept = rig.ask()
    rig.next_step()
    rig.views.settle()
    assert rig.told == []
    assert kept.size == 256


def test_a_new_manager_forgets_the_old_ones_views(rig: Rig) -> None:
    kept = rig.ask()
    rig.live.arenas.made(rig.manager)
    rig.ask()
    rig.next_step()
    rig.ask()
    assert rig.told == []
    assert kept.size == 256


def test_the_list_of_views_is_capped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views_module, "MAX_VIEWS", 3)
    kept: list[Any] = [rig.ask() for _ in range(5)]
    assert len(rig.views.taken) == 3 < len(kept)
    assert rig.live.output.truncated == {"views"}
