"""The memory line: what KV sizing made of the arenas, from records to the reports."""

from __future__ import annotations

import json

import pytest

from tests.unit.findings.build import grown, process, session
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.html.memory import memory_view
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.runs.accounting import accounting_line, windows
from wstrace.trace.records import Growth, Memory, Phase, Ranks, Record

MIB = 1 << 20
CPU = "vllm.v1.worker.cpu_model_runner.CPUModelRunner"


def growth(after: int, phase: Phase, window: str, before: int = 0) -> Growth:
    return grown(after, phase, before=before, window=window)


def run(*records: Record, **more: str) -> AnalysedRun:
    return session(process(*records, **more))  # type: ignore[arg-type]


def mixed() -> AnalysedRun:
    """One MiB of each window."""
    return run(
        growth(MIB, "profile", "counted"),
        growth(2 * MIB, "graph-estimate", "unknown", before=MIB),
        growth(3 * MIB, "kv-init", "not counted", before=2 * MIB),
        Memory(available_kv_bytes=1 << 30),
    )


def test_what_the_arenas_gained_is_summed_by_window() -> None:
    profile = growth(3 * MIB, "profile", "counted", before=MIB)
    late = growth(4 * MIB, "kv-init", "not counted", before=3 * MIB)
    (view,) = run(profile, late).workers
    assert windows(view) == {"counted": 2 * MIB, "not counted": MIB}


def test_the_line_says_all_three_and_why() -> None:
    assert accounting_line(mixed().workers) == (
        "arenas in KV sizing: 1.00 MiB counted, 1.00 MiB not counted, "
        "1.00 MiB unknown (while vLLM estimated the memory of graphs)"
    )


def test_a_trace_without_growth_has_no_line() -> None:
    assert accounting_line(run().workers) == ""
    assert "KV sizing" not in render_text(run())


def test_a_growth_whose_phase_or_window_was_not_written_is_unknown() -> None:
    lost = Growth(slot=growth(1, "init", "unknown").slot, before=0, after=MIB, phase="init")
    assert "1.00 MiB unknown (what vLLM 0.32.0 counts there is not known)" in accounting_line(
        run(lost).workers
    )


def test_an_older_trace_does_not_know_the_graph_estimate() -> None:
    late = growth(MIB, "graph-estimate", "not counted")
    assert "1.00 MiB unknown (while vLLM" in accounting_line(run(late).workers)
    told = Memory(available_kv_bytes=1, window="load_model and profile_run")
    line = "arenas in KV sizing: 1.00 MiB not counted"
    assert accounting_line(run(late, told).workers) == line


def test_a_version_that_is_not_known_is_named() -> None:
    of_tomorrow = run(growth(MIB, "profile", "unknown"), vllm="0.99.0")
    assert "(what vLLM 0.99.0 counts there is not known)" in accounting_line(
        of_tomorrow.workers
    )


def test_a_cpu_worker_says_what_it_measures() -> None:
    on_cpu = run(growth(MIB, "profile", "unknown"), runner=CPU)
    assert "a CPU worker counts the pages that were touched" in accounting_line(on_cpu.workers)


@pytest.mark.parametrize("fixed", ["kv_cache_memory_bytes", "num_gpu_blocks_override"])
def test_a_fixed_kv_size_counts_nothing_also_what_was_written_before(fixed: str) -> None:
    """A startup plan comes when arenas of init and load were written as counted."""
    planned = run(
        growth(MIB, "load", "counted"), Memory(available_kv_bytes=1 << 30, fixed_kv=fixed)
    )
    assert accounting_line(planned.workers) == (
        f"arenas in KV sizing: 1.00 MiB not counted (the KV size is fixed by {fixed})"
    )
    (finding,) = [f for f in planned.findings if f.code == "WS201"]
    assert f"fixed by {fixed}" in finding.detail


def test_of_many_ranks_the_one_with_the_most_uncounted_is_told() -> None:
    world = Ranks(dp=1, tp=2, pp=1)
    ranks = [
        process(growth(n * MIB, "kv-init", "not counted"), ranks=Ranks(tp=n), world=world)
        for n in (1, 2)
    ]
    line = accounting_line(session(*ranks).workers)
    assert line == "arenas in KV sizing: 2.00 MiB not counted (the worst of 2 ranks)"


@pytest.mark.parametrize("render", [render_text, render_markdown])
def test_the_reports_have_the_line(render: object) -> None:
    text = " ".join(render(mixed()).split())  # type: ignore[operator]
    assert "1.00 MiB counted, 1.00 MiB not counted, 1.00 MiB unknown" in text


def test_json_has_the_bytes() -> None:
    (worker,) = json.loads(render_json(mixed()))["run"]["workers"]
    assert worker["kv_sizing"] == {
        "counted": MIB,
        "not_counted": MIB,
        "unknown": MIB,
        "available_kv_bytes": 1 << 30,
        "fixed_by": None,
    }


def test_the_page_shows_each_part_once() -> None:
    view = memory_view(mixed().workers, None)
    assert view is not None
    assert [(part.key, part.now) for part in view.parts] == [
        ("kv", 1 << 30),
        ("arena", MIB),
        ("uncounted", MIB),
        ("unsure", MIB),
    ]
