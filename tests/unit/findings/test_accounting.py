"""WS201 to WS204, and WS104 to WS106, from records."""

from __future__ import annotations

import pytest

from tests.unit.findings.build import CONTINUATION, MOE, ask, grown, locked, process, session
from wstrace.findings.finding import Finding
from wstrace.trace.records import (
    Count,
    Counts,
    Failure,
    Growth,
    Lock,
    Memory,
    Phase,
    PhaseChange,
    Ranks,
    Record,
    Slot,
)

MIB = 1 << 20
SLOT, UBATCH, LANE = Slot(), Slot(1, 0), Slot(0, 1)


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


# -- WS104 to WS106 ---


@pytest.mark.parametrize("slot", [UBATCH, LANE], ids=["DBO thread", "draft lane"])
def test_a_slot_that_warm_up_never_used_is_ws104(slot: Slot) -> None:
    lock = Lock(event="lock", slots=[SLOT, slot], sizes=[MIB, 0], phase="capture")
    warm = [ask(MOE, MIB, "profile", 0), lock, PhaseChange(phase="serving")]
    finding = one("WS104", *warm, ask(MOE, 512, "serving", 0, slot=slot))
    assert (finding.slot, finding.arena_bytes, finding.serving_bytes) == (slot, 0, 512)


def test_a_slot_that_another_site_warmed_is_ws101() -> None:
    lock = Lock(event="lock", slots=[SLOT, LANE], sizes=[MIB, MIB], phase="capture")
    warm = [ask(MOE, MIB, "profile", 0, slot=s) for s in (SLOT, LANE)]
    after = ask(CONTINUATION, 2 * MIB, "serving", MIB, slot=LANE)
    assert {"WS101"} == codes(*warm, lock, PhaseChange(phase="serving"), after) - {"WS107"}


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
        PhaseChange(phase="serving"),
    ]


def test_a_request_that_fits_the_second_lock_is_no_escape() -> None:
    grew = ask(MOE, 4 * MIB, "unlocked", MIB, ns=21)
    after = [*relocked(4 * MIB, 20), grew, served(3 * MIB, 30)]
    assert not {"WS101", "WS102", "WS104"} & codes(*first_life(), *after)


def test_a_request_that_the_first_lock_refused_stays_an_escape() -> None:
    finding = one("WS102", *first_life(), served(2 * MIB, 15), *relocked(4 * MIB, 20))
    assert (finding.serving_bytes, finding.arena_bytes) == (2 * MIB, MIB)


def test_a_trace_that_ends_unlocked_keeps_the_escapes_before() -> None:
    unlock = Lock(event="unlock", slots=[SLOT], sizes=[MIB], phase="serving", ns=20)
    assert "WS102" in codes(*first_life(), served(2 * MIB, 15), unlock)
    assert "WS102" not in codes(*first_life(), served(MIB, 15), unlock)
