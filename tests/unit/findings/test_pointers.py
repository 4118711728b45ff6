"""WS301 to WS304: moved memory, from records."""

from __future__ import annotations

from typing import Any

from tests.unit.findings.build import CONTINUATION, MOE, ask, grown, process, session
from wstrace.findings.finding import Finding
from wstrace.trace.records import (
    Capture,
    Growth,
    Manager,
    Ordering,
    PhaseChange,
    Record,
    Request,
    Slot,
    Step,
    View,
)

MIB = 1 << 20
SLOT, LANE = Slot(), Slot(0, 1)
SERVING = PhaseChange(phase="serving")


def found(*records: Record) -> list[Finding]:
    return session(process(*records)).findings


def codes(*records: Record) -> set[str]:
    return {f.code for f in found(*records)}


def one(code: str, *records: Record) -> Finding:
    (finding,) = [f for f in found(*records) if f.code == code]
    return finding


def graph(number: int, generation: int, slot: Slot = SLOT, **more: Any) -> Capture:
    return Capture(graph=number, slots=[slot], generations=[generation], **more)


def moved(generation: int, slot: Slot = SLOT, manager: int = 0, **more: object) -> Growth:
    """The arena of a slot was replaced while serving."""
    return Growth(
        site=MOE.id,
        slot=slot,
        before=MIB,
        after=2 * MIB,
        phase="serving",
        generation=generation,
        manager=manager,
        **more,  # type: ignore[arg-type]
    )


def test_an_arena_replaced_after_capture_is_ws301_lock_or_no_lock() -> None:
    for locked in (False, True):
        finding = one("WS301", graph(1, 1), graph(2, 1), moved(2, locked=locked))
        assert finding.severity == "error"
        assert "2 captured graphs" in finding.detail
        assert (finding.arena_bytes, finding.serving_bytes) == (MIB, 2 * MIB)


def test_a_graph_of_the_new_arena_is_not_broken_by_its_own_growth() -> None:
    assert "WS301" not in codes(graph(1, 2), moved(2))


def test_throwaway_released_and_empty_graphs_do_not_count() -> None:
    assert "WS301" not in codes(graph(1, 1, throwaway=True), moved(2))
    assert "WS301" not in codes(graph(1, 1), Capture(event="release", graph=1), moved(2))
    assert "WS301" not in codes(Capture(graph=1), moved(2))


def test_another_slots_growth_breaks_nothing() -> None:
    assert "WS301" not in codes(graph(1, 1), moved(2, LANE))
    assert "WS301" in codes(graph(1, 1), moved(2, LANE), moved(2))


def test_grow_keeps_the_old_arena_and_so_no_graph_breaks() -> None:
    assert "WS301" not in codes(graph(1, 1), moved(2, forced=True, kept_bytes=MIB))
    assert "WS301" in codes(graph(1, 1), moved(2, forced=True))


def test_a_new_manager_breaks_graphs_that_were_not_released() -> None:
    first, second = Manager(id=1), Manager(id=2)
    assert "WS301" in codes(first, graph(1, 5), second, moved(1, manager=2))
    released = Capture(event="release", graph=1)
    assert "WS301" not in codes(first, graph(1, 1), released, second, moved(2, manager=2))


def test_one_finding_a_slot_however_often_it_moves() -> None:
    stale = [f for f in found(graph(1, 1), moved(2), moved(3)) if f.code == "WS301"]
    assert len(stale) == 1


def test_growth_while_capturing_is_ws303() -> None:
    growth = grown(MIB, "capture", capturing=True)
    assert [f.severity for f in found(growth) if f.code == "WS303"] == ["error"]
    assert "WS303" not in codes(grown(MIB, "capture"))


def test_growth_in_a_throwaway_graph_is_no_ws303() -> None:
    assert "WS303" not in codes(grown(MIB, "graph-estimate", capturing=True))


def view(why: str, site: int = MOE.id) -> View:
    return View(site=site, slot=SLOT, generation=1, now=2, why=why, bytes=512)  # type: ignore[arg-type]


def test_views_that_were_kept_are_ws302_with_the_site_that_took_them() -> None:
    kept = found(view("growth"), view("next request", CONTINUATION.id))
    stale = {f.function: f for f in kept}
    assert "pins the old arena" in stale[MOE.function].detail
    assert "kept after the next request" in stale[CONTINUATION.function].detail
    assert {f.severity for f in stale.values() if f.code == "WS302"} == {"warning"}


def on_stream(stream: int, step: int, slot: Slot = SLOT, site: int = 0) -> Request:
    where = CONTINUATION if site else MOE
    return ask(where, 512, "serving", MIB, slot=slot, step=Step(index=step), stream=stream)


def test_two_streams_in_one_slot_and_step_are_ws304() -> None:
    finding = one("WS304", on_stream(7, 3), on_stream(8, 3, site=1))
    assert (finding.severity, finding.slot) == ("warning", SLOT)


def ordering(ordered: bool, **more: Any) -> Ordering:
    stacks = {"first_stack": ["a.py:1:ask", "a.py:9:moe"], "second_stack": ["b.py:2:ask"]}
    return Ordering(
        slot=SLOT, first=MOE.id, second=CONTINUATION.id, ordered=ordered, **{**stacks, **more}
    )


def test_streams_that_an_event_orders_are_no_ws304_and_the_run_says_so() -> None:
    records = (on_stream(7, 3), on_stream(8, 3, site=1), ordering(True))
    assert "WS304" not in codes(*records)
    said = [n for n in session(process(*records)).notes if "ordered by events" in n]
    assert said == [
        "several streams ask in slot 0.0, ordered by events: "
        f"{MOE.caller} before {CONTINUATION.caller}"
    ]


def test_streams_that_nothing_orders_are_ws304_with_both_ways() -> None:
    finding = one("WS304", on_stream(7, 3), on_stream(8, 3, site=1), ordering(False))
    assert finding.function == CONTINUATION.function
    for part in (MOE.caller, CONTINUATION.caller, "a.py:9:moe", "no event was seen"):
        assert part in finding.detail


def test_one_pair_without_order_is_not_hidden_by_ordered_ones() -> None:
    records = [ordering(True), ordering(False, capturing=True, phase="capture"), ordering(True)]
    assert "WS304" in codes(*records)
    assert not any("ordered by events" in n for n in session(process(*records)).notes)


def test_order_in_warm_up_outside_a_capture_harms_nobody() -> None:
    assert "WS304" not in codes(ordering(False, phase="warmup"))


def test_where_order_was_not_looked_at_ws304_says_so() -> None:
    detail = one("WS304", on_stream(7, 3), on_stream(8, 3, site=1)).detail
    assert detail.endswith("whether an event orders them was not looked at")


def test_streams_of_other_steps_or_slots_are_no_ws304() -> None:
    assert "WS304" not in codes(on_stream(7, 3), on_stream(8, 4))
    assert "WS304" not in codes(on_stream(7, 3), on_stream(8, 3, LANE))
    assert "WS304" not in codes(on_stream(7, 3), on_stream(7, 3, site=1))


def test_without_a_gpu_the_stream_is_unknown_and_no_ws304() -> None:
    assert "WS304" not in codes(on_stream(0, 3), on_stream(0, 3))


# -- WS304 ---


def _streams(*streams: int, phase: str = "serving", kind: str = "real") -> set[str]:
    step = Step(index=7, kind=kind)  # type: ignore[arg-type]
    requests = [
        ask(MOE, 256 * (n + 1), phase, 1 << 20, step=step, stream=stream)  # type: ignore[arg-type]
        for n, stream in enumerate(streams)
    ]
    return codes(SERVING, *requests)


def test_two_streams_in_one_real_step_are_ws304_the_default_stream_included() -> None:
    assert "WS304" in _streams(0, 99)
    assert "WS304" in _streams(98, 99)


def test_one_stream_is_not() -> None:
    assert "WS304" not in _streams(99, 99)
    assert "WS304" not in _streams(0, 0)


def test_the_streams_of_capture_and_its_warm_up_do_not_count() -> None:
    """Seen on an H100: a graph is warmed up on one stream and captured on another."""
    assert "WS304" not in _streams(98, 99, phase="capture", kind="dummy")
