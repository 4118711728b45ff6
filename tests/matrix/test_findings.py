"""Findings from real traces of each version's manager."""

from __future__ import annotations

import pytest

from tests.matrix.runs import Run
from wstrace.trace.records import Slot

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows
MIB = 1 << 20


@shows("finding: WS101, WS102, WS103")
def test_escapes_are_told_apart_by_what_warm_up_asked(run: Run) -> None:
    found = {f.function: f for f in run.analysed("escapes").findings}
    assert (found["other_ask"].code, found["other_ask"].serving_bytes) == ("WS101", 2 * MIB)
    assert (found["ask"].code, found["ask"].serving_bytes) == ("WS102", 3 * MIB)
    assert (found["ask"].warmup_bytes, found["ask"].arena_bytes) == (MIB, MIB)
    assert (found["small_ask"].code, found["small_ask"].serving_bytes) == ("WS103", 1024)
    assert found["other_ask"].caller.startswith("harness.py:")
    assert run.analysed("escapes").verdict() == "findings"


@shows("finding: WS104 for a ubatch never warmed", since="0.20")
def test_a_ubatch_that_was_never_warmed_escapes(run: Run) -> None:
    assert run.facts("dbo")["error"]
    (finding,) = [f for f in run.analysed("dbo").findings if f.code == "WS104"]
    assert (finding.slot, finding.arena_bytes) == (Slot(1, 0), 0)


@shows("no WS104: every ubatch is resized at once", until="0.18.1")
def test_where_all_ubatches_grow_together_none_is_left_out(run: Run) -> None:
    assert run.facts("dbo")["error"] == ""
    assert "WS104" not in run.codes("dbo")


@shows("finding: WS104 for the draft lane", since="0.28")
def test_a_lane_that_was_never_warmed_escapes(run: Run) -> None:
    (finding,) = [f for f in run.analysed("lanes").findings if f.code == "WS104"]
    assert finding.slot == Slot(0, 1)


@shows("finding: WS201, WS202, WS301 of a growth while serving with no lock")
def test_silent_growth_after_capture_is_found(run: Run) -> None:
    session = run.analysed("unlocked")
    found = {f.code: f for f in session.findings}
    assert {"WS201", "WS202", "WS301"} <= found.keys()
    assert (found["WS301"].arena_bytes, found["WS301"].serving_bytes) == (MIB, 2 * MIB)
    assert found["WS301"].function == "other_ask"
    assert session.verdict() == "findings"


@shows("finding: WS303 (the capturing flag set by the test)")
def test_growth_during_a_capture_is_found(run: Run) -> None:
    assert "WS303" in run.codes("in_capture")
    assert "WS303" not in run.codes("life")


@shows("finding: WS204 for ubatches locked at different sizes", since="0.20")
def test_uneven_slots_are_found(run: Run) -> None:
    (finding,) = [f for f in run.analysed("uneven").findings if f.code == "WS204"]
    assert finding.arena_bytes == MIB


@shows("finding: WS302 with --check-views")
def test_a_view_kept_over_a_growth_is_found(run: Run) -> None:
    found = [f for f in run.analysed("views").findings if f.code == "WS302"]
    assert [f.function for f in found] == ["ask"]
    assert "WS302" not in run.codes("unlocked")


@shows("verdict: a clean run is clean")
def test_a_run_with_nothing_wrong_is_clean(run: Run) -> None:
    assert run.analysed("own_capture_v1").verdict() == "clean"
    assert run.codes("own_capture_v1") == []
