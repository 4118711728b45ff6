"""What KV sizing never saw and what was reserved in vain (the WS2 codes), from records."""

from __future__ import annotations

import pytest

from tests.unit.findings.build import (
    CONTINUATION,
    MOE,
    ask,
    continuation,
    continuation_bytes,
    continuation_provenance,
    grown,
    locked,
    process,
    session,
)
from wstrace.findings.finding import Finding
from wstrace.trace.records import (
    Count,
    Counts,
    Growth,
    Lock,
    Memory,
    Phase,
    PhaseChange,
    Ranks,
    Record,
    ReserveEvent,
    Slot,
)

MIB = 1 << 20
SLOT, UBATCH = Slot(), Slot(1, 0)


def found(*records: Record, **more: object) -> list[Finding]:
    return session(process(*records, **more)).findings  # type: ignore[arg-type]


def one(code: str, *records: Record, **more: object) -> Finding:
    (finding,) = [f for f in found(*records, **more) if f.code == code]
    return finding


def codes(*records: Record, **more: object) -> set[str]:
    return {f.code for f in found(*records, **more)}


# -- WS201 and the window of KV sizing ---


def uncounted(phase: Phase, **more: object) -> Growth:
    return grown(MIB, phase, window="not counted", **more)  # type: ignore[arg-type]


def test_a_builders_reservation_is_ws201_after_the_window() -> None:
    finding = one("WS201", uncounted("kv-init"))
    assert (finding.function, finding.arena_bytes) == (MOE.function, MIB)
    assert "after what this vLLM measures" in finding.detail


def test_an_arena_made_too_early_is_ws201_before_the_window() -> None:
    assert "before what this vLLM measures" in one("WS201", uncounted("init")).detail


def test_a_counted_or_unknown_growth_is_no_ws201() -> None:
    assert "WS201" not in codes(grown(MIB, "profile", window="counted"))
    assert "WS201" not in codes(grown(MIB, "profile"))


def test_growth_forced_through_the_lock_is_no_ws201_but_unlocked_growth_is() -> None:
    assert "WS201" not in codes(uncounted("serving", forced=True, locked=True))
    assert "WS201" in codes(uncounted("serving", forced=True))


def test_a_fixed_kv_size_says_what_to_lower_and_leaves_the_amount_to_the_planner() -> None:
    fixed = Memory(fixed_kv="kv_cache_memory_bytes")
    finding = one("WS201", fixed, uncounted("profile"))
    told = "Lower kv_cache_memory_bytes; what the reserve costs says by how much: "
    assert finding.advice == told + "wstrace reserve trace."


# -- WS202 ---


@pytest.mark.parametrize(
    ("limits", "runner", "why"),
    [
        ({"enforce_eager": True}, "vllm.v1.worker.gpu_model_runner.GPUModelRunner", "eager"),
        ({"cudagraph_mode": "NONE"}, "vllm.v1.worker.gpu_model_runner.X", "no CUDA graphs"),
        ({}, "vllm.v1.worker.gpu.model_runner.GPUModelRunner", "V2 model runner"),
    ],
)
def test_serving_with_no_lock_says_why(limits: dict[str, bool], runner: str, why: str) -> None:
    finding = one("WS202", PhaseChange(phase="serving"), limits=limits, runner=runner)
    assert why in finding.detail


def test_a_lock_or_no_serving_is_no_ws202() -> None:
    assert "WS202" not in codes(*locked(MIB))
    assert "WS202" not in codes(PhaseChange(phase="capture"))


WORST = continuation_bytes(2047)


def allowed(*records: Record) -> set[str]:
    """Codes of a run that may serve with no lock."""
    return {f.code for f in session(process(*records), allow_unlocked=True).findings}


def covered(size: int) -> list[Record]:
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
    assert "WS202" not in allowed(*covered(WORST))


def test_one_byte_less_and_no_lock_is_a_warning_again() -> None:
    assert "WS202" in allowed(*covered(WORST - 1))


def test_without_a_reserve_no_lock_is_a_warning() -> None:
    assert "WS202" in allowed(PhaseChange(phase="serving"))


# -- WS203 ---


def reserved(size: int, *, usual: int, largest: int, rare: int = 1) -> list[Record]:
    """A reserve of `size`; 10,000 requests of at most `usual` bytes, `rare` of `largest`."""
    return [
        grown(size, "profile", reserve=True),
        ask(MOE, usual, "profile", size),
        *locked(size),
        ask(CONTINUATION, largest, "serving", size),
        Counts(
            step=9,
            counts=[
                Count(MOE.id, SLOT, "serving", 10_000, usual),
                Count(CONTINUATION.id, SLOT, "serving", rare, largest),
            ],
        ),
        Memory(num_gpu_blocks=100, block_size=16, bytes_per_block=MIB),
    ]


def test_a_reserve_that_one_request_in_a_thousand_needs_is_ws203_with_its_price() -> None:
    finding = one("WS203", *reserved(64 * MIB, usual=MIB, largest=60 * MIB))
    assert "99.9% of the requests used 1.00 MiB" in finding.detail
    # 63 MiB of 16 tokens a MiB.
    assert "worth 1,008 KV tokens" in finding.detail
    assert finding.severity == "note"


def test_a_reserve_that_more_requests_need_is_none() -> None:
    records = reserved(64 * MIB, usual=MIB, largest=60 * MIB, rare=11)
    assert "WS203" not in codes(*records)


def test_what_a_graph_captured_counts_as_used_for_ever() -> None:
    records = reserved(64 * MIB, usual=MIB, largest=2 * MIB)
    captured = ask(MOE, 60 * MIB, "capture", 64 * MIB, capturing=True)
    assert "WS203" in codes(*records)
    assert "WS203" not in codes(captured, *records)


def test_an_arena_that_profiling_made_is_not_measured_by_its_rare_requests() -> None:
    records = reserved(64 * MIB, usual=MIB, largest=60 * MIB)
    assert "WS203" not in codes(grown(64 * MIB, "profile"), *records[1:])


# -- WS204 ---


def test_ranks_of_one_stage_locked_at_different_sizes_are_ws204() -> None:
    world = Ranks(dp=1, tp=2, pp=1)
    ranks = [
        process(*locked(size), ranks=Ranks(dp=0, tp=n, pp=0, rank=n), world=world)
        for n, size in enumerate((MIB, 2 * MIB))
    ]
    (finding,) = [f for f in session(*ranks).findings if f.code == "WS204"]
    assert finding.arena_bytes == MIB
    assert [r.tp for r in finding.ranks] == [0]


def test_stages_of_a_pipeline_may_differ() -> None:
    world = Ranks(dp=1, tp=1, pp=2)
    ranks = [
        process(*locked(size), ranks=Ranks(dp=0, tp=0, pp=n, rank=n), world=world)
        for n, size in enumerate((MIB, 2 * MIB))
    ]
    assert "WS204" not in {f.code for f in session(*ranks).findings}


def test_ubatches_that_differ_are_ws204_and_an_unused_one_is_not() -> None:
    def lock(first: int, second: int) -> Lock:
        return Lock(event="lock", slots=[SLOT, UBATCH], sizes=[first, second], phase="capture")

    assert one("WS204", lock(MIB, 2 * MIB)).slot == SLOT
    assert "WS204" not in codes(lock(MIB, 0))
    assert "WS204" not in codes(lock(MIB, MIB))
