"""Clean and "nothing was recorded" never look alike: the WS4 codes and the reasons."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from tests.unit.findings.build import MOE, ask, grown, locked, process, session
from wstrace.findings.analysed_run import analyse
from wstrace.findings.coverage import MOST_MISSING
from wstrace.trace.reader import Trace
from wstrace.trace.records import (
    Counts,
    End,
    Hook,
    Limit,
    PhaseChange,
    Ranks,
    Record,
    ReserveEvent,
    ScheduledRequest,
    Step,
    Truncated,
    WorkerInit,
)

SIZE = 1 << 20
CLEAN: list[Record] = [grown(SIZE, "profile"), ask(MOE, SIZE, "profile", 0), *locked(SIZE)]


def test_a_clean_run_is_clean() -> None:
    assert session(process(*CLEAN)).verdict() == "clean"


def test_an_empty_folder_is_inconclusive() -> None:
    empty = analyse(Trace(Path("x"), "", []))
    assert empty.verdict() == "inconclusive"
    assert "never attached" in empty.inconclusive[0]


def test_a_trace_that_ends_before_the_lock_is_ws401() -> None:
    run = session(process(grown(SIZE, "profile"), PhaseChange(phase="profile")))
    assert [f.code for f in run.findings if f.severity == "inconclusive"] == ["WS401"]
    assert run.verdict() == "inconclusive"


def test_serving_with_no_lock_is_ws202_and_inconclusive_unless_allowed() -> None:
    unlocked = process(
        grown(SIZE, "profile", window="counted"),
        ask(MOE, SIZE, "profile", 0),
        PhaseChange(phase="serving"),
        Counts(step=1, steps_real=1),
        limits={"enforce_eager": True},
    )
    run = session(unlocked)
    assert [f.code for f in run.findings] == ["WS202"]
    assert "eager mode" in run.findings[0].detail
    assert run.verdict() == "inconclusive"
    assert session(unlocked, allow_unlocked=True).verdict() == "clean"


def test_a_missing_rank_is_named() -> None:
    run = session(process(*CLEAN, world=Ranks(dp=1, tp=2, pp=1)))
    (finding,) = [f for f in run.findings if f.code == "WS402"]
    assert [(r.dp, r.pp, r.tp) for r in finding.ranks] == [(0, 0, 1)]
    assert run.verdict() == "inconclusive"


@pytest.mark.parametrize(
    "sizes", [{"tp": 20_000_000, "pp": 1000}, {"dp": 10**15}, {"tp": MOST_MISSING + 1}]
)
def test_a_world_of_any_size_takes_no_memory_for_it(sizes: dict[str, int]) -> None:
    world = Ranks(**{"dp": 1, "pp": 1, "tp": 1, "node": 10**15, **sizes})
    made = process(*CLEAN, world=world)
    made.records = [
        msgspec.structs.replace(r, ranks=msgspec.structs.replace(r.ranks, node=0))
        if isinstance(r, WorkerInit)
        else r
        for r in made.records
    ]
    tracemalloc.start()
    run = session(made)
    (finding,) = [f for f in run.findings if f.code == "WS402"]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 << 20
    assert len(finding.ranks) == MOST_MISSING
    assert finding.detail.startswith("10,000 ranks or more left no trace (no more are counted")


def test_a_group_of_no_rank_promises_none() -> None:
    run = session(process(*CLEAN, world=Ranks(dp=10**15, pp=-1, tp=1)))
    assert not [f for f in run.findings if f.code == "WS402"]


def test_an_escape_beside_a_missing_rank_is_findings() -> None:
    escape = ask(MOE, SIZE + 1, "serving", SIZE)
    run = session(process(*CLEAN, escape, world=Ranks(dp=1, tp=2, pp=1)))
    assert run.verdict() == "findings"
    assert run.inconclusive


def test_a_hook_that_stood_down_is_ws402() -> None:
    hook = Hook(
        name="WorkspaceManager._ensure_workspace_size", set=False, why="signature is ()"
    )
    run = session(process(*CLEAN, hook))
    assert "signature is ()" in run.inconclusive[0]


def test_a_capture_hook_matters_only_where_graphs_are_captured() -> None:
    hook = Hook(name="CUDAGraph.capture_begin", set=False, why="no CUDA")
    assert session(process(*CLEAN, hook)).verdict() == "inconclusive"
    assert (
        session(process(*CLEAN, hook, limits={"cudagraph_mode": "NONE"})).verdict() == "clean"
    )


def test_a_refused_reserve_is_inconclusive() -> None:
    refused = ReserveEvent(event="refused", why="another model")
    assert session(process(*CLEAN, refused)).inconclusive == [
        "a reserve was refused: another model"
    ]


def test_truncation_is_a_note_only() -> None:
    run = session(process(*CLEAN, Truncated(what="keys", limit=20000)))
    assert [f.code for f in run.findings] == ["WS403"]
    assert run.verdict() == "clean"


def test_a_server_that_was_asked_nothing_is_inconclusive() -> None:
    run = session(process(*CLEAN, Counts(step=3, steps_real=0), End()))
    assert run.inconclusive == ["no request was served after warm-up"]
    running = process(*CLEAN, Counts(step=3, steps_real=0))
    running.header.pid = 41
    so_far = Trace(Path("t"), "run1", [running], alive=frozenset([41]))
    assert analyse(so_far).inconclusive == []  # its last steps may be unwritten: pytest's own
    assert session(process(*CLEAN, Counts(step=3, steps_real=1))).verdict() == "clean"


def test_counters_lost_to_a_kill_are_made_up_from_the_recorded_requests() -> None:
    """Servers on the H100 were ended with SIGKILL a moment after the last prompt."""
    steps = [
        Step(index=n, total_tokens=256, num_reqs=1, requests=[ScheduledRequest(256, 256 * n)])
        for n in (1, 2, 3)
    ]
    requests = [ask(MOE, 256 * s.index, "serving", SIZE, step=s) for s in steps]
    (view,) = session(process(*CLEAN, Counts(step=3, steps_real=1), *requests)).workers
    assert view.counts is not None
    assert (view.counts.steps_real, view.counts.max_computed) == (3, 768)
    assert (view.counts.max_continued, view.counts.max_tokens) == (768, 256)


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        (["0.13.0", "0.13.0"], []),
        (["0.33.2"], []),
        (["0.1.dev7+gabc"], ["0.1.dev7+gabc names no release: taken for newer than 0.33.0"]),
        ([None], ["vLLM says no version: taken for newer than 0.33.0"]),
        (["0.34.0"], ["vLLM 0.34.0 is not among the releases"]),
        (["0.12.0"], ["vLLM 0.12.0 is not among the releases"]),
    ],
)
def test_versions_that_call_for_care_are_noted(
    versions: list[str | None], told: list[str]
) -> None:
    places = [Ranks(dp=0, tp=number, rank=number) for number in range(len(versions))]
    run = session(
        *(process(*CLEAN, vllm=v, ranks=r) for v, r in zip(versions, places, strict=True))
    )
    assert [note[: len(start)] for note, start in zip(run.notes, told, strict=True)] == told
    assert run.verdict() == "clean"


def test_ranks_of_two_versions_are_of_no_one_launch() -> None:
    places = [Ranks(dp=0, tp=number, rank=number) for number in range(2)]
    run = session(
        *(
            process(*CLEAN, vllm=v, ranks=r)
            for v, r in zip(["0.32.0", "0.31.0"], places, strict=True)
        )
    )
    assert run.inconclusive == ["the workers have different vLLM versions: 0.31.0, 0.32.0"]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("group", ["tp", "pp", "pcp"])
def test_groups_of_different_sizes_are_of_no_one_launch(group: str, order: int) -> None:
    """Each has all its ranks by the words of one of them."""
    run = session(
        *(
            process(
                *CLEAN,
                world=Ranks(**({"dp": 1, "tp": 2, "pp": 1, "pcp": 1} | {group: size})),
                ranks=Ranks(dp=0, tp=number, pp=0, rank=number),
            )
            for number, size in enumerate([2, 4][::order])
        )
    )
    told = f"the workers have different numbers of {group.upper()} ranks: 2, 4"
    assert told in run.inconclusive


def test_ranks_with_another_model_or_context_are_of_no_one_launch() -> None:
    """A model whose name nobody recorded differs from none."""
    settings: list[dict[str, Limit]]
    settings = [{"model": "a"}, {"model": "b", "max_model_len": 99}, {"model": None}]
    run = session(
        *(
            process(*CLEAN, limits=limits, ranks=Ranks(dp=0, tp=number, rank=number))
            for number, limits in enumerate(settings)
        )
    )
    assert run.inconclusive == [
        "the workers have different values of model: a, b",
        "the workers have different values of max_model_len: 2048, 99",
    ]
