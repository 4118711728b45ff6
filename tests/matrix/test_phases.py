"""Phases and steps around the real manager, in each version; V1 and V2 capture_model itself.

The worker is scripted in vLLM's own order; vLLM's door, lock, ubatches, lanes and scheduler
records are real.
"""

from __future__ import annotations

import ast

import pytest

from tests.matrix.runs import Run
from tests.matrix.wheels import sources
from wstrace.recorder.vllm_state.scheduler_output import WARMUP_PREFIXES
from wstrace.trace.records import Capture, Growth, PhaseChange, Request

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows


@shows("phases: load to shutdown, in order")
def test_the_phases_of_a_life_come_in_order(run: Run) -> None:
    named = [c.phase for c in run.records("life", PhaseChange) if c.phase != "init"]
    assert named == [
        "load",
        "profile",
        "graph-estimate",
        "kv-init",
        "warmup",
        "capture",
        "post-lock-warmup",
        "serving",
        "shutdown",
    ]


@shows("phases: each request lies in its own")
def test_each_request_is_in_the_phase_that_made_it(run: Run) -> None:
    asked = {(a.bytes, a.phase) for a in run.records("life", Request)}
    assert asked == {
        (256, "load"),
        (1 << 20, "profile"),
        (2 << 20, "graph-estimate"),
        (3 << 20, "kv-init"),
        (512, "warmup"),
        (1 << 20, "capture"),
        (768, "post-lock-warmup"),
        (1024, "serving"),
        (768, "serving"),
    }


@shows("capture: throwaway graphs told from those that serve")
def test_the_graph_of_the_memory_estimate_is_a_throwaway(run: Run) -> None:
    graphs = [c for c in run.records("life", Capture) if c.event == "end"]
    assert [g.throwaway for g in graphs] == [True, False]
    assert graphs[1].generations == [4]


@shows("V1: capture_model locks")
def test_the_v1_runner_locks_in_its_own_capture_model(run: Run) -> None:
    facts = run.facts("own_capture_v1")
    assert facts == {"locked": True, "runner": "vllm.v1.worker.gpu_model_runner"}
    phases = [c.phase for c in run.records("own_capture_v1", PhaseChange)]
    assert phases[-3:] == ["capture", "post-lock-warmup", "serving"]


@shows("V2: capture_model never locks, WS202", until="0.29")
def test_the_v2_runner_up_to_0_29_never_locks(run: Run) -> None:
    assert run.facts("own_capture_v2")["locked"] is False
    assert "WS202" in run.codes("own_capture_v2")
    assert run.analysed("own_capture_v2").verdict() == "inconclusive"


@shows("V2: capture_model locks", since="0.30")
def test_the_v2_runner_locks_from_0_30_on(run: Run) -> None:
    facts = run.facts("own_capture_v2")
    assert facts == {"locked": True, "runner": "vllm.v1.worker.gpu.model_runner"}
    assert run.analysed("own_capture_v2").verdict() == "clean"


@shows("V2: warm-up requests told from real ones")
def test_made_up_requests_are_no_real_steps(run: Run) -> None:
    facts = run.facts("warm_up_requests")
    assert facts["kinds"] == ["warmup", "warmup", "warmup", "real", "idle"]
    assert (facts["real"], facts["max_tokens"]) == (1, 7)


@shows("V2: the names of its warm-up requests are the known ones", since="0.18")
def test_vllms_own_warm_up_names_its_requests_as_expected(run: Run) -> None:
    folder = sources(".".join(map(str, run.version)))
    tree = ast.parse((folder / "vllm/v1/worker/gpu/warmup.py").read_text())
    names = {
        part.value
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and isinstance(part := node.values[0], ast.Constant)
        if str(part.value).startswith("_")
    }
    assert names
    assert all(str(name).startswith(WARMUP_PREFIXES) for name in names)


@shows("V2: sample_tokens belongs to its step", since="0.28")
def test_what_sample_tokens_asks_is_put_to_the_step_before(run: Run) -> None:
    draft = run.records("lanes", Request)[-1]
    assert draft.slot.lane == 1
    assert draft.step is not None
    assert (draft.step.kind, draft.step.total_tokens, draft.step.num_reqs) == ("real", 3, 1)


@shows("steps: idle steps of data parallel")
def test_an_idle_step_is_told_from_a_dummy_run(run: Run) -> None:
    kinds = [a.step.kind for a in run.records("life", Request) if a.phase == "serving"]
    assert kinds == ["real", "idle"]


@shows("elastic EP: unlock, growth, relock without false escapes", since="0.18")
def test_elastic_ep_leaves_no_false_escape(run: Run) -> None:
    facts = run.facts("relock")
    assert (facts["unlocked"], facts["phase"]) == ("unlocked", "serving")
    assert run.codes("relock") == ["WS201"]
    phases = [c.phase for c in run.records("relock", PhaseChange)]
    assert phases[-5:] == ["unlocked", "warmup", "capture", "post-lock-warmup", "serving"]


@shows("elastic EP: the reserve is applied again before the next profile run", since="0.18")
def test_the_reserve_comes_back_before_the_next_profile_run(run: Run) -> None:
    facts = run.facts("reserve_again")
    assert facts["at_first_profile"] == 4096 * 1280
    assert facts["at_second_profile"] == 5734 * 1280
    grown = [g for g in run.records("reserve_again", Growth) if g.reserve]
    assert [(g.phase, g.after) for g in grown] == [
        ("profile", 4096 * 1280),
        ("unlocked", 5734 * 1280),
    ]


@shows("sleep and wake: no false escapes")
def test_sleep_and_wake_are_phases_and_no_escapes(run: Run) -> None:
    phases = [c.phase for c in run.records("sleeping", PhaseChange)]
    assert phases[-3:] == ["serving", "sleep", "serving"]
    assert run.codes("sleeping") == []


@shows("a new manager while serving: generations start anew, no false WS301")
def test_a_manager_made_anew_is_no_moved_arena(run: Run) -> None:
    codes = run.codes("remade")
    assert not {"WS301", "WS101", "WS102", "WS104"} & set(codes)
