"""WS101 to WS107: the warm-up/serving diff, at the exact byte."""

from __future__ import annotations

import pytest

from tests.unit.findings.build import (
    CONTINUATION,
    DECODE_SIZE,
    MOE,
    ask,
    continuation,
    continuation_bytes,
    grown,
    locked,
    process,
    session,
)
from wstrace.findings.finding import Finding
from wstrace.trace.records import Failure, Lock, PhaseChange, Ranks, Record, Slot

ARENA = MIB = 1 << 20
SLOT, UBATCH, LANE = Slot(), Slot(1, 0), Slot(0, 1)
SERVING = PhaseChange(phase="serving")


def warm(size: int = ARENA) -> list[Record]:
    """MOE made an arena of `size` bytes in the profile run; then the lock."""
    return [grown(size, "profile"), ask(MOE, size, "profile", 0), *locked(size)]


def found(*records: Record) -> dict[str, Finding]:
    return {f.code: f for f in session(process(*records)).findings}


def one(code: str, *records: Record) -> Finding:
    (finding,) = [f for f in session(process(*records)).findings if f.code == code]
    return finding


def test_a_site_never_asked_before_the_lock_is_ws101() -> None:
    finding = found(*warm(DECODE_SIZE), continuation(256, DECODE_SIZE))["WS101"]
    assert finding.severity == "error"
    assert finding.serving_bytes == continuation_bytes(256) == 262_144
    assert finding.warmup_bytes is None
    assert finding.arena_bytes == DECODE_SIZE
    assert finding.bound is not None
    assert (finding.bound.bytes, finding.bound.grade) == (2_097_152, "proved")


def test_a_site_that_had_asked_for_less_is_ws102() -> None:
    finding = found(*warm(), ask(MOE, ARENA + 1, "serving", ARENA))["WS102"]
    assert (finding.warmup_bytes, finding.serving_bytes) == (ARENA, ARENA + 1)


def test_exactly_the_arena_is_no_escape_and_one_byte_more_is() -> None:
    assert "WS102" not in found(*warm(), ask(MOE, ARENA, "serving", ARENA))
    assert "WS102" in found(*warm(), ask(MOE, ARENA + 1, "serving", ARENA))


def test_masked_with_a_bound_beyond_the_arena_is_an_error() -> None:
    finding = found(*warm(), continuation(256, ARENA))["WS103"]
    assert finding.severity == "error"


def test_masked_with_a_bound_inside_the_arena_is_a_note() -> None:
    finding = found(*warm(2_097_152), continuation(256, 2_097_152))["WS103"]
    assert finding.severity == "note"
    assert session(process(*warm(2_097_152), continuation(256, 2_097_152))).verdict() == "clean"


def test_under_grow_a_later_request_is_measured_against_the_lock_not_the_growth() -> None:
    records = [
        *warm(DECODE_SIZE),
        continuation(1024, DECODE_SIZE),
        grown(
            continuation_bytes(1024), "serving", before=DECODE_SIZE, forced=True, locked=True
        ),
        ask(MOE, DECODE_SIZE + 256, "serving", continuation_bytes(1024)),
    ]
    codes = [f.code for f in session(process(*records)).findings]
    assert codes.count("WS101") == 1
    assert codes.count("WS102") == 1


def test_a_request_between_the_lock_and_serving_escapes_too() -> None:
    finding = found(*warm(), ask(MOE, ARENA + 256, "post-lock-warmup", ARENA))["WS102"]
    assert finding.phase == "post-lock-warmup"


def test_a_slot_that_only_serving_uses_is_ws104() -> None:
    other = Slot(1, 0)
    records = [
        grown(ARENA, "profile"),
        ask(MOE, ARENA, "profile", 0),
        *locked(ARENA, Slot(), other),
        ask(MOE, ARENA + 256, "serving", 0, slot=other),
    ]
    finding = found(*records)["WS104"]
    assert finding.slot == other


def test_nothing_escapes_before_the_lock() -> None:
    records = [grown(ARENA, "profile"), ask(MOE, ARENA, "profile", 0, locked=False)]
    assert not [c for c in found(*records) if c.startswith("WS1")]


def test_a_bound_above_the_arena_is_predicted_before_any_crash() -> None:
    seen = continuation(64, 0, "profile")
    finding = found(seen, grown(seen.bytes, "profile"), *locked(seen.bytes))["WS107"]
    assert finding.severity == "warning"
    assert "2.00 MiB" in finding.detail


@pytest.mark.parametrize(("kind", "code"), [("persistent", "WS105"), ("layer", "WS106")])
def test_refusals_of_their_own_kind(kind: str, code: str) -> None:
    failure = Failure(kind=kind, site=2, slot=Slot(), phase="serving", key="'scratch'")  # type: ignore[arg-type]
    finding = found(*warm(), failure)[code]
    assert finding.severity == "error"
    assert "reserve does not cover" in finding.advice


def test_the_same_escape_on_two_ranks_is_one_finding() -> None:
    world = Ranks(dp=1, tp=2, pp=1)
    both = session(
        process(*warm(), ask(MOE, ARENA + 256, "serving", ARENA), world=world),
        process(
            *warm(),
            ask(MOE, ARENA + 512, "serving", ARENA),
            ranks=Ranks(dp=0, tp=1, pp=0, rank=1),
            world=world,
        ),
    )
    (finding,) = [f for f in both.findings if f.code == "WS102"]
    assert [r.tp for r in finding.ranks] == [0, 1]
    assert finding.serving_bytes == ARENA + 512


def test_findings_come_worst_first() -> None:
    records = [*warm(), ask(MOE, ARENA + 1, "serving", ARENA), continuation(2000, ARENA)]
    findings = session(process(*records)).findings
    assert [f.function for f in findings[:2]] == [CONTINUATION.function, MOE.function]


# -- WS104 to WS106 ---


@pytest.mark.parametrize("slot", [UBATCH, LANE], ids=["DBO thread", "draft lane"])
def test_a_slot_that_warm_up_never_used_is_ws104(slot: Slot) -> None:
    lock = Lock(event="lock", slots=[SLOT, slot], sizes=[MIB, 0], phase="capture")
    warm = [ask(MOE, MIB, "profile", 0), lock, SERVING]
    finding = one("WS104", *warm, ask(MOE, 512, "serving", 0, slot=slot))
    assert (finding.slot, finding.arena_bytes, finding.serving_bytes) == (slot, 0, 512)


def test_a_slot_that_another_site_warmed_is_ws101() -> None:
    lock = Lock(event="lock", slots=[SLOT, LANE], sizes=[MIB, MIB], phase="capture")
    warm = [ask(MOE, MIB, "profile", 0, slot=s) for s in (SLOT, LANE)]
    after = ask(CONTINUATION, 2 * MIB, "serving", MIB, slot=LANE)
    assert found(*warm, lock, SERVING, after).keys() - {"WS107"} == {"WS101"}


@pytest.mark.parametrize(("kind", "code"), [("persistent", "WS105"), ("layer", "WS106")])
@pytest.mark.parametrize("survived", [False, True])
def test_other_refusals_are_errors_that_no_reserve_covers(
    kind: str, code: str, survived: bool
) -> None:
    failure = Failure(
        kind=kind,  # type: ignore[arg-type]
        site=MOE.id,
        slot=LANE,
        phase="serving",
        key="('semaphores', 8)",
        layer="model.layers.3",
        survived=survived,
    )
    finding = one(code, *locked(MIB), failure)
    assert (finding.severity, finding.slot) == ("error", LANE)
    assert finding.function == MOE.function
    assert finding.layers == ("model.layers.3",)
    assert "('semaphores', 8)" in finding.detail
    assert "reserve does not cover it" in finding.advice


# -- elastic EP: unlock, grow, lock again ---


def relocked(size: int, ns: int) -> list[Record]:
    """unlock, an arena of `size` made while unlocked, lock; records carry their time."""
    return [
        Lock(event="unlock", slots=[SLOT], sizes=[MIB], phase="serving", ns=ns),
        grown(size, "unlocked", ns=ns + 1),
        Lock(event="lock", slots=[SLOT], sizes=[size], phase="capture", ns=ns + 2),
    ]


def served(size: int, ns: int) -> Record:
    return ask(MOE, size, "serving", MIB, ns=ns)


def first_life() -> list[Record]:
    return [
        ask(MOE, MIB, "profile", 0),
        Lock(event="lock", slots=[SLOT], sizes=[MIB], phase="capture", ns=10),
        SERVING,
    ]


def test_a_request_that_fits_the_second_lock_is_no_escape() -> None:
    grew = ask(MOE, 4 * MIB, "unlocked", MIB, ns=21)
    after = [*relocked(4 * MIB, 20), grew, served(3 * MIB, 30)]
    assert not {"WS101", "WS102", "WS104"} & found(*first_life(), *after).keys()


def test_a_request_that_the_first_lock_refused_stays_an_escape() -> None:
    finding = one("WS102", *first_life(), served(2 * MIB, 15), *relocked(4 * MIB, 20))
    assert (finding.serving_bytes, finding.arena_bytes) == (2 * MIB, MIB)


def test_a_trace_that_ends_unlocked_keeps_the_escapes_before() -> None:
    unlock = Lock(event="unlock", slots=[SLOT], sizes=[MIB], phase="serving", ns=20)
    assert "WS102" in found(*first_life(), served(2 * MIB, 15), unlock)
    assert "WS102" not in found(*first_life(), served(MIB, 15), unlock)
