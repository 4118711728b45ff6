"""The public tables: values worked out by hand, dtypes, and tables without rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd
import pytest

from tests.unit.report_html import runs
from wstrace.api import Trace
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.frames import frames
from wstrace.frames.columns import TABLES, Table

MIB = 1 << 20
CRASHED = Trace(runs.crashed())
EMPTY = Trace(runs.empty())


def table(trace: Trace, name: Table) -> pd.DataFrame:
    made: pd.DataFrame = getattr(trace, name)()
    return made


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("trace", [CRASHED, EMPTY], ids=["crashed", "empty"])
def test_columns_and_dtypes_are_those_of_the_table(trace: Trace, name: Table) -> None:
    made = table(trace, name)
    assert list(made.columns) == [column.name for column in TABLES[name]]
    assert [str(dtype) for dtype in made.dtypes] == [c.dtype for c in TABLES[name]]
    ordered = {c.name for c in TABLES[name] if c.categories}
    categories = made.select_dtypes("category")
    assert {n for n in categories if categories[n].cat.ordered} == ordered


def rows(name: Table) -> list[frames.Row]:
    run = runs.crashed()
    made: dict[Table, Iterable[frames.Row]] = {
        "requests": frames.request_rows(run),
        "sites": frames.site_rows(run),
        "steps": frames.step_rows(run),
        "findings": frames.finding_rows(run.findings, None),
    }
    return list(made[name])


@pytest.mark.parametrize("name", TABLES)
def test_a_row_has_a_key_for_each_column_and_no_other(name: Table) -> None:
    columns = {column.name for column in TABLES[name]}
    assert rows(name)
    for row in rows(name):
        assert columns - row.keys() == set(), f"no value in the rows of {name}"
        assert row.keys() - columns == set(), f"no column of {name}"


def test_every_table_of_the_crashed_run_has_rows_and_of_the_empty_one_none() -> None:
    found = {name: len(table(EMPTY, name)) for name in TABLES}
    assert found.pop("findings") == len(runs.empty().findings)
    assert set(found.values()) == {0}
    assert all(len(table(CRASHED, name)) for name in TABLES)


def test_requests_have_what_was_asked_and_which_escaped() -> None:
    requests = CRASHED.requests()
    assert len(requests) == 2 * 7  # seven requests of each of two ranks
    wrong = requests[requests.escaped]
    assert wrong.tp.tolist() == [0, 1]
    assert (
        wrong.bytes.tolist() == [32 * MIB] * 2
    )  # 8192 tokens * 8 heads * 128 * 2 bytes, K and V
    assert wrong.arena_warmup_bytes.tolist() == [24 * MIB] * 2
    assert wrong.shapes.iloc[0] == "bfloat16[1,8,8192,128] bfloat16[1,8,8192,128]"
    assert wrong.max_computed.tolist() == [8192] * 2


def test_what_is_unknown_is_missing_and_not_zero() -> None:
    requests = CRASHED.requests()
    captured = requests[requests.phase == "capture"]
    assert captured.step.isna().all()
    assert captured.total_tokens.isna().all()


def test_phases_sort_as_an_engine_lives_and_severities_by_weight() -> None:
    requests = CRASHED.requests()
    assert requests.phase.max() == "serving"
    assert requests.phase.min() == "profile"
    findings = CRASHED.findings()
    assert (findings.severity >= "warning").tolist()[0]
    assert findings.severity.iloc[0] == findings.severity.max() == "error"


def test_sites_say_over_all_ranks_what_was_asked_and_can_be() -> None:
    sites = CRASHED.sites().set_index("function")
    site = sites.loc[runs.CONTINUATION]
    assert (site.serving_bytes, site.arena_bytes, site.ranks) == (32 * MIB, 24 * MIB, 2)
    assert bool(site.escaped)
    assert not sites.loc[runs.EXPERTS].escaped.any()


def test_a_step_is_one_row_of_its_worker() -> None:
    steps = CRASHED.steps()
    assert not steps.duplicated(["tp", "phase", "step"]).any()
    wrong = steps[steps.escaped]
    assert wrong.bytes.tolist() == [32 * MIB] * 2
    assert wrong.max_scheduled.tolist() == [2048] * 2


def test_findings_have_their_numbers() -> None:
    first = CRASHED.findings().iloc[0]
    assert (first.code, first.ranks, first.serving_bytes) == ("WS101", 2, 32 * MIB)
    assert first.function == runs.CONTINUATION


@pytest.mark.parametrize("make", [runs.crashed, runs.empty])
def test_the_tables_say_escaped_where_the_findings_do(make: Callable[[], AnalysedRun]) -> None:
    run = make()
    requests, sites = frames.requests(run), frames.sites(run)
    told = {f.function for f in run.escapes if f.serving_bytes}
    assert set(requests[requests.escaped].function) == told
    assert set(sites[sites.escaped].function) == told


def test_secrets_in_names_do_not_come_out() -> None:
    run = runs.crashed()
    for worker in run.workers:
        for site in worker.callers.values():
            site.file = "https://user:secret@host/x.py"
    assert not frames.requests(run).file.astype(str).str.contains("secret").any()
