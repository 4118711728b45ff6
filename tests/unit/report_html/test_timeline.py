"""The timeline: bands, bins, and what must never be lost."""

from __future__ import annotations

import pytest

from tests.unit.report_html import runs
from wstrace.report.html.timeline import BINS, MOST_BANDS, Timeline, timelines
from wstrace.trace.records import PhaseChange, Record, Slot


def _line(session: object, slot: Slot = runs.SLOT) -> Timeline:
    lines, _ = timelines(session)  # type: ignore[arg-type]
    return next(line for line in lines if line.slot == slot)


def test_phases_in_order_with_the_empty_ones() -> None:
    line = _line(runs.crashed())
    names = ["load", "profile", "kv-init", "warmup", "capture", "post-lock-warmup", "serving"]
    assert [band.phase for band in line.bands] == names
    assert line.bands[0].start == 0
    assert line.bands[-1].end == pytest.approx(1)
    for before, after in zip(line.bands, line.bands[1:], strict=False):
        assert before.end == pytest.approx(after.start)


def test_a_refusal_stands_for_its_request() -> None:
    line = _line(runs.crashed())
    assert [p.bytes for p in line.points["refused"]] == [32 * 2**20]
    assert "escape" not in line.points
    assert [p.bytes for p in line.points["serving"]] == [12 * 2**20, 8 * 2**20]


def test_escapes_of_a_grown_run_and_its_staircase() -> None:
    line = _line(runs.grown())
    sizes = [runs.attention_bytes(9000), runs.attention_bytes(15000)]
    assert [p.bytes for p in line.points["escape"]] == sizes
    assert [p.bytes for p in line.arena] == [0, 24 * 2**20, *sizes, sizes[-1]]
    assert line.arena[-1].x == 1


def test_lock_and_captures_are_marked() -> None:
    texts = [mark.text for mark in _line(runs.crashed()).marks]
    assert texts == ["lock 24.00 MiB", "2 graphs captured"]
    assert next(m.text for m in _line(runs.reserved()).marks) == "reserve applied"


def test_each_slot_has_its_own_line_of_the_rank_that_asked_most() -> None:
    lines, left = timelines(runs.crashed())
    assert [(line.slot, line.rank, line.others) for line in lines] == [
        (Slot(0, 0), "tp0", 1),
        (Slot(1, 0), "tp0", 1),
    ]
    assert left == 0


def test_bins_keep_the_largest_and_every_kind() -> None:
    """30,000 requests after the lock; one in the middle is an escape, another the largest."""
    records: list[Record] = [*runs.worker(0, 1), *runs.warm_up()]
    sizes = [256 * (1 + i * 7919 % 500) for i in range(30_000)]
    sizes[12_345] = 20 * 2**20
    sizes[23_456] = 25 * 2**20
    records += [runs.ask(n, "serving", arena=24 * 2**20, locked=True) for n in sizes]
    line = _line(runs.session(runs.process(runs.Clock().stamp(records))))
    assert line.events == 30_000 + 4
    assert len(line.points["serving"]) <= BINS
    assert max(p.bytes for p in line.points["serving"]) == 20 * 2**20
    assert [p.bytes for p in line.points["escape"]] == [25 * 2**20]


def test_many_phase_changes_are_joined() -> None:
    changes = [PhaseChange(phase="sleep" if i % 2 else "serving") for i in range(500)]
    requests = [runs.ask(256, "serving") for _ in changes]
    records = [r for pair in zip(changes, requests, strict=True) for r in pair]
    session = runs.session(runs.process(runs.Clock().stamp([*runs.worker(0, 1), *records])))
    line = _line(session)
    assert len(line.bands) <= MOST_BANDS
    assert line.bands[-1].phase == "later"
    assert line.events == 500


def test_a_slot_that_was_never_used_is_no_picture() -> None:
    lines, left = timelines(runs.grown())
    assert [line.slot for line in lines] == [Slot(0, 0)]
    assert left == 0
