"""A start that raised: which part of it is named, and which rank comes first."""

from __future__ import annotations

import pytest

from tests.unit.findings.build import process, session, with_exit
from wstrace.findings.ends import start_died
from wstrace.trace.records import Phase, PhaseChange, Ranks

X = "RuntimeError: x"


def raised(method: str, phase: Phase, error: str = X) -> PhaseChange:
    return PhaseChange(phase=phase, why=f"{method} raised", error=error)


@pytest.mark.parametrize("died", [0, 1])
def test_the_rank_whose_start_raised_is_told_first_and_once(died: int) -> None:
    own = process(
        PhaseChange(phase="load"), raised("load_model", "init"), ranks=Ranks(tp=died, rank=died)
    )
    peer = process(PhaseChange(phase="load"), ranks=Ranks(tp=1 - died, rank=1 - died))
    run = with_exit(session(*((own, peer) if died == 0 else (peer, own))), 1)
    first, second = (f for f in run.findings if f.code == "WS401")
    assert (first.detail, first.ranks[0].tp) == ("loading ended with RuntimeError: x", died)
    assert second.advice.startswith("Mend what stopped the start")
    assert run.inconclusive[0] == "loading ended with RuntimeError: x"
    assert not any("where its peers went on" in reason for reason in run.inconclusive)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([raised("determine_available_memory", "init")], "KV sizing ended with"),
        ([raised("initialize_from_config", "init")], "making the KV cache ended with"),
        (
            [
                PhaseChange(phase="profile"),
                raised("profile_run", "init"),
                raised("determine_available_memory", "init"),
            ],
            "profiling ended with",
        ),
        (
            [
                PhaseChange(phase="warmup"),
                PhaseChange(phase="capture"),
                raised("capture_model", "warmup"),
                raised("compile_or_warm_up_model", "init"),
            ],
            "graph capture ended with",
        ),
        (
            [
                PhaseChange(phase="post-lock-warmup"),
                raised("capture_model", "post-lock-warmup"),
                raised("compile_or_warm_up_model", "init"),
            ],
            "graph capture ended with",
        ),
        (
            [
                PhaseChange(phase="capture"),
                raised("capture_model", "warmup", "ValueError: handled"),
                raised("compile_or_warm_up_model", "init"),
            ],
            "warm-up ended with",
        ),
        (
            [
                PhaseChange(phase="graph-estimate"),
                raised("profile_cudagraph_memory", "init"),
                PhaseChange(phase="kv-init"),
            ],
            "",
        ),
    ],
)
def test_an_error_is_told_by_the_innermost_part_of_the_start(
    changes: list[PhaseChange], told: str
) -> None:
    assert start_died(process(*changes)) == (told and f"{told} {X}")
