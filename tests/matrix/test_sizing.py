"""Accounting against vLLM's own arithmetic: what sizing subtracts for an arena, in bytes.

Each life is run twice, without an arena and with one of 8 MiB made at one point; the
difference in what vLLM's `determine_available_memory` returns is what it counted. That is
compared with the window that wstrace wrote for the growth. See scenes_sizing.py for what is
real and what is simulated.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.runs import Run
from tests.matrix.scenes_sizing import ARENA, FIXED, POINTS
from tests.matrix.wheels import sources

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows
SAID = {"counted": ARENA, "not counted": 0}
MEASURED = tuple(p for p in POINTS if "graph of" in p or "second graph" in p)


def lives(run: Run, name: str) -> dict[str, Any]:
    """The lives with this setting of the graph estimate."""
    found: dict[str, Any] = run.facts("sizing")[name]
    return found


def subtracted(group: dict[str, Any], point: str) -> int:
    """Bytes that the KV cache lost because of an arena made at this point."""
    return int(group["None"]["available"]) - int(group[point]["available"])


def said(group: dict[str, Any], point: str) -> str:
    """wstrace's word for the one growth of this life; "" where the point never came."""
    grown = group[point]["grown"]
    assert len(grown) <= 1
    return str(grown[0][1]) if grown else ""


@shows("accounting: what vLLM's own KV sizing subtracts is what wstrace says")
def test_a_growth_is_counted_where_vllm_subtracts_it(run: Run) -> None:
    group = lives(run, "not applied")
    for point in POINTS:
        if window := said(group, point):
            assert subtracted(group, point) == SAID[window], point


@shows("accounting: the same with the graph estimate applied", since="0.18")
def test_only_growth_in_the_graph_estimate_is_unknown(run: Run) -> None:
    group = lives(run, "applied")
    for point in POINTS:
        window = said(group, point)
        if point in MEASURED:
            assert window == "unknown", point
        else:
            assert subtracted(group, point) == SAID[window], point


@shows("accounting: what vLLM's own KV sizing subtracts is what wstrace says")
def test_the_first_snapshot_decides_from_0_27_on(run: Run) -> None:
    group = lives(run, "not applied")
    late = ARENA if run.version >= (0, 27) else 0
    assert subtracted(group, "before the snapshot") == 0
    assert subtracted(group, "after the snapshot") == late
    assert subtracted(group, "before profiling") == late
    assert subtracted(group, "load_model") == ARENA
    assert subtracted(group, "profile_run") == ARENA
    assert subtracted(group, "after sizing") == 0
    assert subtracted(group, "initialize_kv_cache") == 0
    missing = [p for p in POINTS if not said(group, p)]
    assert all(p.startswith("graph estimate") for p in missing)
    assert bool(missing) is not run.facts("sizing")["estimates"]


@shows(
    "accounting: growth in the graph estimate is counted whole, in part or not", since="0.18"
)
def test_the_graph_estimate_counts_as_its_modes_fall_out(run: Run) -> None:
    group = lives(run, "applied")
    counted = {point: subtracted(group, point) for point in MEASURED}
    assert counted == {
        "graph estimate: first graph of the larger mode": ARENA,
        "graph estimate: first graph of the smaller mode": 0,
        "graph estimate: second graph": ARENA,
    }
    assert subtracted(group, "graph estimate: builders") == 0
    assert said(group, "graph estimate: builders") == "not counted"


@shows("accounting: a fixed KV size counts nothing")
def test_a_fixed_kv_size_is_what_vllm_returns(run: Run) -> None:
    fixed = run.facts("sizing")["fixed"]
    assert fixed == {"available": FIXED, "grown": [["profile", "not counted"]]}


@shows("accounting: a startup plan counts nothing", since="0.26")
def test_a_startup_plan_is_what_vllm_returns(run: Run) -> None:
    plan = run.facts("sizing")["plan"]
    assert plan == {"available": FIXED, "grown": [["profile", "not counted"]]}


@shows("accounting: the manager is made after the first snapshot")
def test_the_manager_is_made_after_the_snapshot(run: Run) -> None:
    worker = _class(run, "gpu_worker.py", "Worker")
    calls = [
        name
        for method in ("init_device", "_init_workspace_and_model_runner")
        for name in _called(worker.get(method))
        if name in ("MemorySnapshot", "init_workspace_manager")
    ]
    assert calls == ["MemorySnapshot", "init_workspace_manager"]


@shows("accounting: loading is measured by the profiler that the test used")
def test_load_model_measures_with_the_profiler(run: Run) -> None:
    for file in ("gpu_model_runner.py", "gpu/model_runner.py"):
        assert "DeviceMemoryProfiler" in _called(
            _class(run, file, "GPUModelRunner")["load_model"]
        )


def _class(run: Run, file: str, name: str) -> dict[str, ast.AST]:
    """The methods of a class in vLLM's source, by name."""
    folder: Path = sources(".".join(map(str, run.version)))
    tree = ast.parse((folder / "vllm/v1/worker" / file).read_text())
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    return {n.name: n for n in found.body if isinstance(n, ast.FunctionDef)}


def _called(tree: ast.AST | None) -> list[str]:
    """Names of what is called, in the order of the source."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)] if tree else []
    names = [(n.lineno, n.col_offset, n.func.id) for n in calls if isinstance(n.func, ast.Name)]
    return [name for *_, name in sorted(names)]
