"""Ranks of many hosts: the grid, what is missing, the largest, and the reserve of the worst."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tools.fleet.planted import EXPERTS, Fault, Plan, continued, write_run
from wstrace.findings.analysed_run import AnalysedRun, analyse
from wstrace.findings.coverage import missing_ranks
from wstrace.findings.kv_sizing import find_across
from wstrace.gate.runs import load_runs
from wstrace.planning.from_run import plan_run
from wstrace.planning.plan import Wishes
from wstrace.report.html import render
from wstrace.report.html.ranks import rank_grid
from wstrace.runs.worker import rank_name
from wstrace.trace.process_file import read_file
from wstrace.trace.records import Lock, Ranks

MIB = 1 << 20


def hosts_of(plan: Plan, folder: Path) -> AnalysedRun:
    """The run of all its hosts' folders."""
    folders = sorted({file.parent for file in write_run(plan, folder).files.values()})
    (run,) = load_runs(folders)
    return run


def test_many_ranks_stand_by_engine_with_their_hosts(tmp_path: Path) -> None:
    grid = rank_grid(hosts_of(Plan(run="r", ranks=64, hosts=8, dp=2), tmp_path))
    assert [(row.name, len(row.cells)) for row in grid.rows] == [("dp0", 32), ("dp1", 32)]
    last = grid.rows[1].cells[-1]
    assert (last.name, last.short, last.host) == ("dp1 tp31", "31", "node7")
    assert (grid.compact, grid.largest) == (True, "")


def test_a_dead_node_is_named_and_its_ranks_are_missing(tmp_path: Path) -> None:
    fault: Fault = "dead node"
    run = hosts_of(Plan(run="r", ranks=64, hosts=8, dp=2, fault=fault), tmp_path)
    missing = [cell.name for cell in rank_grid(run).cells if cell.state == "missing"]
    assert missing == [f"dp1 tp{n}" for n in range(24, 32)]  # eight on each of 8 nodes
    (finding,) = run.findings
    assert finding.detail == "8 of 64 ranks left no trace, none of node 7"


def test_nodes_are_not_told_where_a_worker_does_not_know_its_own(tmp_path: Path) -> None:
    run = hosts_of(Plan(run="r", ranks=8, hosts=4, fault="dead node"), tmp_path)
    init = run.workers[0].init
    init.ranks = msgspec.structs.replace(init.ranks, node=None)
    (finding,) = analyse(run.trace).findings
    assert finding.detail == "2 of 8 ranks left no trace"


def test_the_largest_rank_is_named(tmp_path: Path) -> None:
    run = hosts_of(Plan(run="r", ranks=8, hosts=4, fault="small rank"), tmp_path)
    assert rank_grid(run).largest == (
        "The largest arena is that of tp7 with 6.00 MiB, "
        "the smallest that of tp0 with 5.00 MiB."
    )
    assert [cell.name for cell in rank_grid(run).cells if cell.odd] == ["tp7"]
    assert render([run]).count('class="locked odd"') == 1
    (finding,) = [f for f in run.findings if f.code == "WS204"]
    assert finding.detail == "ranks were locked at 5.00 MiB (tp0 and 6 more), 6.00 MiB (tp7)"


def test_of_many_sizes_the_least_and_the_most_are_told(tmp_path: Path) -> None:
    workers = hosts_of(Plan(run="r", ranks=8), tmp_path).workers
    for number, worker in enumerate(workers):
        worker.locks[-1] = Lock(
            event="lock", slots=worker.slots(), sizes=[(number + 1) * MIB], phase="capture"
        )
    (finding,) = find_across(workers)
    assert finding.detail == (
        "ranks were locked at 8 sizes, from 1.00 MiB (tp0) to 8.00 MiB (tp7)"
    )


def test_a_reserve_is_the_worst_ranks_and_says_each(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    written = write_run(Plan(run="r", ranks=4, fault="latent"), folder)
    file = written.files[3]
    text = file.read_text().replace('"max_model_len":4096', '"max_model_len":8192')
    file.write_text(text)
    assert read_file(file).worker is not None
    (run,) = load_runs([file.parent])
    made = plan_run(run, Wishes()).config
    assert [slot.bytes for slot in made.slots] == [continued(8191)]
    (site,) = [s for s in made.sites if not s.site.startswith(EXPERTS.file)]
    assert site.why.endswith("the worst of 4 ranks: 8.00 MiB (tp3); 4.00 MiB (tp0 and 2 more)")


@pytest.mark.parametrize("ranks", [4, 512])
def test_a_reserve_says_which_rank_asked_for_most(ranks: int, tmp_path: Path) -> None:
    """Ranks of equal limits, and a bound that is only what was seen."""
    run = hosts_of(Plan(run="r", ranks=ranks, fault="small rank"), tmp_path)
    sites = {site.site: site for site in plan_run(analyse(run.trace), Wishes()).config.sites}
    (experts,) = [site for name, site in sites.items() if name.startswith(EXPERTS.file)]
    assert experts.grade == "observed"
    told = f"the worst of {ranks} ranks: 6.00 MiB (tp{ranks - 1}); 5.00 MiB (tp0 and"
    assert experts.why.endswith(f"{told} {ranks - 2} more)")
    (attention,) = [site for site in sites.values() if site is not experts]
    assert "the worst of" not in attention.why


def test_ranks_of_prefill_context_parallelism_are_told_apart(tmp_path: Path) -> None:
    run = hosts_of(Plan(run="r", ranks=2), tmp_path)
    for number, worker in enumerate(run.workers):
        worker.init.ranks = Ranks(dp=0, pp=0, tp=0, pcp=number, rank=number)
        worker.init.world = Ranks(dp=1, pp=1, tp=1, pcp=3)
    told = analyse(run.trace)
    names = [rank_name(worker.ranks, worker.world) for worker in told.workers]
    assert names == ["pcp0", "pcp1"]
    assert missing_ranks(told.workers) == [Ranks(dp=0, pp=0, tp=0, pcp=2)]
