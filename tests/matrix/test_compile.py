"""torch.compile: traced through the wrapper wherever vLLM's own manager can be traced.

Each attempt is first made on the unwrapped manager of the same version. From 0.28 on vLLM
looks its lane up in a ContextVar, which Dynamo refuses: there the wrapper must not change the
answer, and must be traceable once that look-up is taken out.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.matrix.runs import Run
from wstrace.trace.records import Counts, Request

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows
HOW = pytest.mark.parametrize("how", ["wrapped", "views"])
VIEW = {"error": "", "sum": 16.0, "in_arena": True, "shape": [16], "dtype": "torch.float32"}


def attempts(run: Run, how: str) -> dict[str, Any]:
    """What came of the attempts; `how` says what was on the manager, and it was."""
    found: dict[str, Any] = run.facts("traced")[how]
    assert found["wrapped"] == (how != "plain")
    return found


@shows("torch.compile(fullgraph=True): vLLM's unwrapped manager is traceable", until="0.27")
def test_vllms_unwrapped_manager_is_traceable(run: Run) -> None:
    assert attempts(run, "plain")["fullgraph"] == VIEW


@shows(
    "torch.compile(fullgraph=True): vLLM's unwrapped manager is not traceable (ContextVar)",
    since="0.28",
)
def test_vllms_unwrapped_manager_is_not_traceable(run: Run) -> None:
    assert attempts(run, "plain")["fullgraph"] == {"error": "Unsupported", "contextvar": True}


@HOW
@shows("torch.compile(fullgraph=True): with the wrapper as without, traced or refused")
def test_the_wrapper_is_traceable_wherever_vllms_own_manager_is(run: Run, how: str) -> None:
    assert attempts(run, how)["fullgraph"] == attempts(run, "plain")["fullgraph"]


@HOW
@shows("torch.compile(fullgraph=True): the wrapper is traceable, the lane look-up taken out")
def test_the_wrapper_itself_is_always_traceable(run: Run, how: str) -> None:
    assert attempts(run, "plain")["fixed lane"] == VIEW
    assert attempts(run, how)["fixed lane"] == VIEW


@HOW
@shows("torch.compile without fullgraph: the wrapper runs and gives the same view")
def test_with_graph_breaks_the_view_is_the_same(run: Run, how: str) -> None:
    assert attempts(run, "plain")["with breaks"] == VIEW
    assert attempts(run, how)["with breaks"] == VIEW


@shows("torch.compile(fullgraph=True): a request inside a custom op is recorded")
def test_a_request_inside_a_custom_op_is_recorded(run: Run) -> None:
    assert run.facts("custom_op")["sums"] == [32.0] * 3
    (asked,) = [a for a in run.records("custom_op", Request) if a.phase == "serving"]
    assert (asked.bytes, asked.step and asked.step.kind) == (1024, "real")
    counted = [c for r in run.records("custom_op", Counts) for c in r.counts]
    assert max(c.calls for c in counted if c.phase == "serving") == 3
