"""Past WSTRACE_MAX_KEYS: every request is counted, each new maximum of a site is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.recorder.test_ways import HEADS_AND_SIZE, Recorded
from wstrace.recorder.hooks import requests
from wstrace.trace.records import Truncated

pytest.importorskip("torch")
CAP = 3


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path, max_keys=CAP)


def counted(run: Recorded) -> list[tuple[int, int]]:
    """Calls and largest request of each site and phase, as they are written."""
    last = run.live.counters.flush(run.live.steps)
    assert last is not None
    return [(count.calls, count.max_bytes) for count in last.counts]


def test_requests_past_the_cap_are_counted_and_new_maxima_written(run: Recorded) -> None:
    run.traffic(tuple(f"d{rows}" for rows in (1, 2, 3)))
    run.traffic(tuple(f"d{rows}" for rows in (10, 9, 8, 20, 19, 20, 4)))
    assert [request.bytes // HEADS_AND_SIZE for request in run.requests()] == [1, 2, 3, 10, 20]
    assert [(t.what, t.limit) for t in run.records if isinstance(t, Truncated)] == [
        ("keys", CAP)
    ]
    assert counted(run) == [(10, 20 * HEADS_AND_SIZE)]


def test_a_request_past_the_cap_that_is_no_maximum_is_not_looked_at(
    run: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.traffic(("d1", "d2", "d3", "d9"))
    monkeypatch.setattr(requests, "answered", None)  # a call of it would be a note
    monkeypatch.setattr(requests, "look", None)
    run.traffic(tuple(f"d{rows}" for rows in (9, 8, 7, 6, 5, 4)))
    assert [r for r in run.records if type(r).__name__ == "Note"] == []
    assert counted(run) == [(10, 9 * HEADS_AND_SIZE)]


def test_each_call_and_each_phase_has_a_maximum_of_its_own(run: Recorded) -> None:
    run.traffic(("d1", "d2", "d3", "d9"))
    run.impl.of_metadata(run.module.DecodeMetadata(5))  # another site, smaller than d9
    run.live.counters.forget(run.live.phases.current)  # as a new phase does
    run.traffic(("d8",))
    kib = [request.bytes // 1024 for request in run.requests()]
    assert kib == [1, 2, 3, 9, 5, 8]
    assert counted(run) == [(5, 9 * HEADS_AND_SIZE), (1, 5 * 1024)]


def test_a_refusal_past_the_cap_is_recorded(run: Recorded) -> None:
    run.traffic(("d1", "d2", "d3", "d9"))

    def refuse(manager: object, size: int) -> None:
        raise AssertionError(f"locked: {size}")

    run.manager.ensure = requests.wrap_ensure(run.live)(refuse)
    with pytest.raises(AssertionError, match="locked"):
        run.traffic(("d10",))
    assert run.records[-1].required == 10 * HEADS_AND_SIZE
    with pytest.raises(AssertionError, match="locked"):
        run.traffic(("d8",))  # no maximum: it is counted and not looked at before
    assert run.records[-1].required == 8 * HEADS_AND_SIZE
