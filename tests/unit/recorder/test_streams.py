"""The watch over streams in the hot path: stand-ins for CUDA's classes here, real streams in
`tests/gpu/test_streams.py` on a machine that has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from wstrace.recorder.hooks import streams
from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.recorder.state.stream_order import MOST_WATCHES, WATCHED_STEPS
from wstrace.trace.records import Counts, Ordering, Request

torch = pytest.importorskip("torch")


class Stream:
    """torch.cuda.Stream's shape; `current` is the one that a `with` would have set."""

    current = 0

    def __init__(self, number: int) -> None:
        self.cuda_stream = number

    def synchronize(self) -> None:
        pass


class Event:
    """torch.cuda.Event's shape: it orders nothing here, it is only called."""

    def record(self, stream: Stream | None = None) -> None:
        pass

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class WorkspaceManager:
    """vLLM's manager, as far as the hot path looks at it."""

    def __init__(self, live: Live) -> None:
        self._current_workspaces = [torch.empty(1 << 16, dtype=torch.uint8)]
        self._locked = True
        self.ensure = wrap_seen(live)(lambda manager, size: manager._current_workspaces[0])

    def get_simultaneous(self, size: int) -> None:
        self.ensure(self, size)


class Rig:
    """A recorder whose device is made of stand-ins; two layers ask in one slot."""

    def __init__(self, folder: Path) -> None:
        self.live = Live(Settings(directory=str(folder), run="r"))
        self.records: list[Any] = []
        self.live.output.write = self.records.append  # type: ignore[assignment, method-assign]
        self.manager = WorkspaceManager(self.live)
        self.live.phases.current = "serving"

    def attention(self) -> None:
        self.manager.get_simultaneous(512)

    def indexer(self) -> None:
        self.manager.get_simultaneous(512)

    def on(self, stream: int, ask: Callable[[], None]) -> None:
        Stream.current = stream
        ask()
        Stream.current = 0

    def step(self, body: Callable[[], None], times: int = 1) -> None:
        for _ in range(times):
            self.live.steps.real += 1
            body()

    def orderings(self) -> list[bool]:
        return [r.ordered for r in self.records if isinstance(r, Ordering)]


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(torch.cuda, "Event", type("Event", (Event,), dict(vars(Event))))
    monkeypatch.setattr(torch.cuda, "Stream", type("Stream", (Stream,), dict(vars(Stream))))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(streams, "current_stream", lambda: Stream.current)
    return Rig(tmp_path)


def in_parallel(rig: Rig, joined: bool) -> Callable[[], None]:
    """vLLM's shape: a side stream between a fork and a join; the request comes before the
    fork, so that only the join can be forgotten."""
    fork, join = torch.cuda.Event(), torch.cuda.Event()

    def step() -> None:
        rig.on(0, rig.attention)
        fork.record()
        Stream.current = 8
        fork.wait()
        rig.indexer()
        join.record()
        Stream.current = 0
        if joined:
            join.wait()

    return step


def test_joined_streams_are_ordered(rig: Rig) -> None:
    rig.step(in_parallel(rig, joined=True), times=3)
    assert set(rig.orderings()) == {True}
    pairs = {(r.first, r.second) for r in rig.records if isinstance(r, Ordering)}
    assert len(pairs) == 2  # attention before indexer, and the next step's after it


def test_a_join_that_is_forgotten_is_seen_with_both_stacks(rig: Rig) -> None:
    rig.step(in_parallel(rig, joined=False), times=3)
    bad = [r for r in rig.records if isinstance(r, Ordering) and not r.ordered]
    assert len(bad) == 1
    assert ["indexer" in bad[0].first_stack[0], "attention" in bad[0].second_stack[0]] == [
        True,
        True,
    ]


def test_one_stream_is_never_watched(rig: Rig) -> None:
    before = torch.cuda.Event.record
    rig.step(rig.attention, times=5)
    rig.step(rig.indexer, times=5)
    assert torch.cuda.Event.record is before
    assert rig.orderings() == []


def test_the_wrappers_come_off_after_some_steps_and_requests_are_fast_again(rig: Rig) -> None:
    before = torch.cuda.Event.record
    rig.step(in_parallel(rig, joined=True))
    assert torch.cuda.Event.record is not before
    rig.step(in_parallel(rig, joined=True), times=WATCHED_STEPS + 2)
    assert torch.cuda.Event.record is before
    assert not rig.live.streams.on
    assert rig.live.counters.hot


def test_a_watch_loses_no_count_and_writes_no_request_twice(rig: Rig) -> None:
    rig.live.worker.current = object()
    rig.step(in_parallel(rig, joined=True), times=10)
    rig.live.flush_counts()
    last = [r for r in rig.records if isinstance(r, Counts)][-1]
    calls: dict[int, int] = {}
    for count in last.counts:
        calls[count.site] = calls.get(count.site, 0) + count.calls
    assert calls == {1: 10, 2: 10}
    assert len([r for r in rig.records if isinstance(r, Request)]) == 2


def test_watches_are_bounded(rig: Rig) -> None:
    for stream in range(1, 3 * MOST_WATCHES):
        for _ in range(WATCHED_STEPS + 2):
            rig.step(partial(rig.on, stream, rig.attention))
    assert rig.live.streams.watches <= MOST_WATCHES


def test_a_class_that_cannot_be_wrapped_is_said_and_requests_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", torch.Event)  # immutable: written in C
    for _ in range(3):
        rig.step(partial(rig.on, 0, rig.attention))
        rig.on(8, rig.indexer)
    assert not rig.live.hooks.is_set("Event.record")
    assert False in rig.orderings()
