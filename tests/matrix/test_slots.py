"""Findings of several owners: micro-batch threads, streams, ranks, kept views, a reserve."""

from __future__ import annotations

from typing import Any

import pytest

from tests.matrix.runs import Run
from wstrace.findings.finding import Finding
from wstrace.trace.reader import load_trace
from wstrace.trace.records import Count, Counts, Header, Ranks, Request, Slot, View

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows
MIB = 1 << 20


def found(run: Run, folder: str, code: str) -> list[Finding]:
    """The findings of this code."""
    return [f for f in run.load(folder).findings if f.code == code]


@shows("DBO: two real threads, vLLM's own contexts: each request in its own slot")
def test_each_micro_batch_thread_asks_in_its_own_slot(run: Run) -> None:
    facts = run.facts("threads")
    idents = facts["idents"]
    assert len({*idents, facts["main"]}) == 3
    assert facts["left"] == 0
    serving = [a for a in run.records("threads", Request) if a.phase == "serving"]
    assert [(a.thread, a.slot, a.bytes, a.cudagraph_mode) for a in serving] == [
        (idents[0], Slot(0, 0), 512, "MODE_0"),
        (idents[1], Slot(1, 0), 512, "MODE_1"),
        (idents[1], Slot(1, 0), 768, "MODE_1"),
        (idents[1], Slot(1, 0), 2 * MIB, "MODE_1"),
    ]


@shows("DBO: two real threads: calls counted by slot, the refusal in the right one")
def test_calls_of_micro_batches_are_counted_apart(run: Run) -> None:
    assert "current size is 1.00 MB" in run.facts("threads")["error"][0]
    newest: dict[tuple[int, Slot], Count] = {}
    for record in run.records("threads", Counts):
        newest |= {(c.site, c.slot): c for c in record.counts if c.phase == "serving"}
    calls: dict[Slot, list[int]] = {}
    for (_, slot), count in newest.items():
        calls.setdefault(slot, []).append(count.calls)
    assert {slot: sorted(of) for slot, of in calls.items()} == {
        Slot(0, 0): [3],
        Slot(1, 0): [1, 2],
    }
    (escape,) = found(run, "threads", "WS101")
    assert (escape.slot, escape.function, escape.serving_bytes) == (
        Slot(1, 0),
        "other_ask",
        2 * MIB,
    )


@shows("finding: WS304 for a side stream in one slot (stream handles set by the test)")
def test_two_streams_in_one_slot_and_step_are_found(run: Run) -> None:
    assert run.facts("streams")["ways"]
    (finding,) = found(run, "streams/two", "WS304")
    assert (finding.slot, finding.function, finding.serving_bytes) == (Slot(), "other_ask", 768)
    assert finding.step
    assert finding.step.kind == "real"
    asked = [r for r in records(run, "streams/two") if isinstance(r, Request)]
    assert [a.stream for a in asked if a.phase == "serving"] == [7, 8]
    assert found(run, "streams/in turn", "WS304") == []


@shows("no WS304: a side stream in a lane of its own", since="0.28")
def test_a_lane_of_its_own_is_no_shared_slot(run: Run) -> None:
    assert "lanes" in run.facts("streams")["ways"]
    asked = [r for r in records(run, "streams/lanes") if isinstance(r, Request)]
    serving = [(a.slot, a.stream) for a in asked if a.phase == "serving"]
    assert serving == [(Slot(0, 0), 7), (Slot(0, 1), 8)]
    assert found(run, "streams/lanes", "WS304") == []


def records(run: Run, folder: str) -> list[Any]:
    """All records of the files in a folder."""
    return [r for p in load_trace(run.folder / folder).processes for r in p.records]


@shows("finding: WS204 for ranks locked at different sizes (two processes)")
def test_ranks_locked_at_different_sizes_are_found(run: Run) -> None:
    assert len(set(run.facts("ranks")["pids"])) == 4
    processes = load_trace(run.folder / "ranks/uneven").processes
    headers: list[Header] = [p.header for p in processes]
    assert len({h.pid for h in headers}) == 2
    (finding,) = found(run, "ranks/uneven", "WS204")
    assert [(r.tp, r.rank) for r in finding.ranks] == [(1, 1)]
    assert (finding.slot, finding.arena_bytes) == (Slot(), MIB)
    assert "1.00 MiB (tp1), 2.00 MiB (tp0)" in finding.detail
    assert [v.ranks for v in run.load("ranks/even").workers] == [
        Ranks(dp=0, tp=0, rank=0),
        Ranks(dp=0, tp=1, rank=1),
    ]
    assert found(run, "ranks/even", "WS204") == []
    assert run.load("ranks/even").verdict() == "clean"


@shows("finding: WS302 for a view that a constructor kept: it pins the old arena")
def test_a_view_kept_by_a_constructor_pins_the_old_arena(run: Run) -> None:
    pinned = run.facts("constructors")["pinned"]
    assert pinned == {"pins": 4096, "shares": 0, "takes anew": 0}
    (finding,) = found(run, "constructors/pins", "WS302")
    assert finding.function == "ask_for_layer"
    assert "pins the old arena" in finding.detail
    (view,) = [r for r in records(run, "constructors/pins") if isinstance(r, View)]
    assert (view.why, view.bytes, view.generation, view.now) == ("growth", 4096, 1, 2)
    assert found(run, "constructors/takes anew", "WS302") == []


@shows("finding: WS302 for a view that a constructor kept over the next request")
def test_a_view_kept_by_a_constructor_is_overwritten(run: Run) -> None:
    run.facts("constructors")
    (finding,) = found(run, "constructors/shares", "WS302")
    assert "kept after the next request" in finding.detail
    assert finding.function == "ask_for_layer"


@shows("finding: WS203 for a reserve far above what was used")
def test_a_reserve_far_above_what_was_used_is_found(run: Run) -> None:
    run.facts("oversized")
    (finding,) = found(run, "oversized/far above", "WS203")
    assert (finding.arena_bytes, finding.serving_bytes) == (8 * MIB, MIB)
    tokens = (8 - 1) * MIB // (MIB // 64 // 16)
    assert f"worth {tokens:,} KV tokens" in finding.detail
    assert found(run, "oversized/near", "WS203") == []
