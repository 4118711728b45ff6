"""Scheduler state: sizes of requests, never their ids or tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from wstrace.recorder.state.steps import StepTracker
from wstrace.trace.records import ScheduledRequest


def output(new: dict[str, tuple[int, int]], cached: dict[str, tuple[int, int]]) -> Any:
    """A SchedulerOutput by its fields' names: id -> (scheduled, computed)."""
    scheduled = {i: n for i, (n, _) in {**new, **cached}.items()}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=i, num_computed_tokens=c) for i, (_, c) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached), num_computed_tokens=[c for _, c in cached.values()]
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={"b": [7, 8]},
    )


def test_a_step_lists_new_and_continued_requests_by_size() -> None:
    steps = StepTracker()
    steps.begin(output({"a": (200, 0)}, {"b": (3, 4096)}), in_warmup=False)
    step = steps.snapshot()
    assert (step.kind, step.total_tokens, step.num_reqs, step.draft_tokens) == (
        "real",
        203,
        2,
        2,
    )
    assert step.requests == [
        ScheduledRequest(scheduled=200, computed=0, new=True),
        ScheduledRequest(scheduled=3, computed=4096, draft=2),
    ]


def test_the_largest_real_steps_are_kept() -> None:
    steps = StepTracker()
    steps.begin(output({"a": (200, 0)}, {"b": (3, 4096)}), in_warmup=False)
    steps.begin(output({"c": (10, 0)}, {}), in_warmup=False)
    assert (steps.max_tokens, steps.max_reqs, steps.max_computed) == (203, 2, 4096)
    assert steps.real == 2


def test_made_up_requests_of_a_v2_warm_up_are_no_real_step() -> None:
    steps = StepTracker()
    steps.begin(output({"_warmup_0_": (8, 0), "_warmup_1_": (8, 0)}, {}), in_warmup=False)
    assert steps.kind == "warmup"
    steps.begin(output({"x": (8, 0)}, {}), in_warmup=True)
    assert steps.kind == "warmup"
    assert steps.real == 0


def test_a_step_that_only_tells_of_finished_requests_is_idle() -> None:
    steps = StepTracker()
    steps.begin(output({}, {}), in_warmup=False)
    assert steps.kind == "idle"


def test_the_output_is_not_held_after_the_step() -> None:
    steps = StepTracker()
    steps.begin(output({"a": (1, 0)}, {}), in_warmup=False)
    steps.end()
    assert steps.output is None
    assert steps.snapshot().requests == []
