"""WS202 and WS304: what an unlocked run and its streams show."""

from __future__ import annotations

from tests.unit.findings.build import (
    CONTINUATION,
    MOE,
    ask,
    continuation,
    continuation_bytes,
    continuation_provenance,
    process,
    session,
)
from wstrace.trace.records import Growth, PhaseChange, Record, ReserveEvent, Slot, Step

WORST = continuation_bytes(2047)


def codes(*records: Record) -> set[str]:
    return {f.code for f in session(process(*records), allow_unlocked=True).findings}


def reserved(size: int) -> list[Record]:
    """A reserve of `size` bytes, then serving with no lock, then one continuation."""
    grow = Growth(
        slot=Slot(), before=0, after=size, phase="profile", reserve=True, window="counted"
    )
    applied = ReserveEvent(event="applied", slots=[Slot()], sizes=[size])
    request = ask(
        CONTINUATION,
        continuation_bytes(256),
        "serving",
        size,
        locked=False,
        provenance=continuation_provenance(256),
        step=continuation(256, size).step,
    )
    return [grow, applied, PhaseChange(phase="serving"), request]


def test_a_reserve_of_every_proved_bound_takes_the_danger_out_of_no_lock() -> None:
    assert "WS202" not in codes(*reserved(WORST))


def test_one_byte_less_and_no_lock_is_a_warning_again() -> None:
    assert "WS202" in codes(*reserved(WORST - 1))


def test_without_a_reserve_no_lock_is_a_warning() -> None:
    assert "WS202" in codes(PhaseChange(phase="serving"))


def _streams(*streams: int, phase: str = "serving", kind: str = "real") -> set[str]:
    step = Step(index=7, kind=kind)  # type: ignore[arg-type]
    asks = [
        ask(MOE, 256 * (n + 1), phase, 1 << 20, step=step, stream=stream)  # type: ignore[arg-type]
        for n, stream in enumerate(streams)
    ]
    return codes(PhaseChange(phase="serving"), *asks)


def test_two_streams_in_one_real_step_are_ws304_the_default_stream_included() -> None:
    assert "WS304" in _streams(0, 99)
    assert "WS304" in _streams(98, 99)


def test_one_stream_is_not() -> None:
    assert "WS304" not in _streams(99, 99)
    assert "WS304" not in _streams(0, 0)


def test_the_streams_of_capture_and_its_warm_up_do_not_count() -> None:
    """Seen on an H100: a graph is warmed up on one stream and captured on another."""
    assert "WS304" not in _streams(98, 99, phase="capture", kind="dummy")
