"""A colon in a site's file or function: every output names the same file and function.

The names are made up: a path of Windows, code from `exec`, a function that was named while the
program ran. What each output must say is written beside it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from tests.unit.findings import build
from wstrace.bounds.bound import Bound
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.gate.judge import Policy, judge
from wstrace.gate.limits import Limits
from wstrace.planning.earlier import Earlier
from wstrace.planning.from_run import not_covered, plan_run
from wstrace.planning.inputs import Engine, SiteBound, Wishes
from wstrace.planning.plan import plan
from wstrace.report.ci import sarif
from wstrace.report.html import render
from wstrace.report.html.pair import render_pair
from wstrace.reserve.config import ReserveConfig, dumps, load_reserve
from wstrace.trace.records import Failure, Record, Site, Slot

KIB = 1024
NAMES = [
    ("C:/engine/plugin.py", "Layer.forward", "forward"),
    ("<string>:1", "f", "f"),
    ("plugin.py", "op:forward", "op:forward"),
    ("<string>", "make.<locals>.<lambda>", "<lambda>"),
]
named = pytest.mark.parametrize(("file", "function", "short"), NAMES)


def _run(file: str, function: str, short: str) -> AnalysedRun:
    """Another site makes the arena in warm-up; this one asks for twice as much in serving."""
    base = file.rpartition("/")[2]
    site = Site(id=7, file=file, function=function, line=9, caller=f"{base}:9:{short}")
    records: list[Record] = [
        build.grown(64 * KIB, "profile"),
        build.ask(build.MOE, 64 * KIB, "profile", 0),
        *build.locked(64 * KIB),
        build.ask(site, 128 * KIB, "serving", 64 * KIB),
    ]
    return build.session(build.process(site, *records))


def _figures(page: str) -> dict[str, Any]:
    found = re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    figures: dict[str, Any] = json.loads(found[1])
    return figures


def _labels(page: str, figure: str) -> list[str]:
    """The sites beside the bars, without mark, number and slot."""
    bars = _figures(page)[figure]["data"][0]["y"]
    # matches: "✕ 1 forward"
    return [re.sub(r"^(?:\W )?\d+ ", "", unescape(label)) for label in bars]


@named
def test_the_plan_names_file_and_function(file: str, function: str, short: str) -> None:
    payload = plan_run(_run(file, function, short), Wishes()).payload()
    sites = {(s["file"], s["function"]): s["site"] for s in payload["sites"]}
    assert sites[file, function] == f"{file}:{function}"


@named
def test_an_earlier_reserve_is_of_the_same_site(
    tmp_path: Path, file: str, function: str, short: str
) -> None:
    run = _run(file, function, short)
    path = tmp_path / "reserve.yaml"
    path.write_text(dumps(plan_run(run, Wishes()).config), encoding="utf-8")
    again = plan_run(run, Wishes(), [Earlier("old.yaml", load_reserve(path))])
    assert again.payload()["sites"] == plan_run(run, Wishes()).payload()["sites"]
    assert not again.kept


@named
def test_a_site_that_only_an_earlier_reserve_has(file: str, function: str, short: str) -> None:
    del short
    engine = Engine(limits={"model": "tiny"})
    seen = Bound(bytes=KIB, grade="observed", observed=KIB)
    old = plan([SiteBound(file, function, seen, KIB)], engine).config
    other = SiteBound("a.py", "f", replace(seen, bytes=512, observed=512), 512)
    (kept,) = [
        s
        for s in plan([other], engine, earlier=[Earlier("old.yaml", old)]).payload()["sites"]
        if s["site"] != "a.py:f"
    ]
    assert (kept["file"], kept["function"]) == (file, function)


def test_a_reserve_knows_its_site_where_the_name_alone_does_not() -> None:
    """`x:f` and `g:h` joined could be cut in three places; the run has the site itself."""
    run = _run("x:f", "g:h", "g:h")
    old: ReserveConfig = plan_run(run, Wishes()).config
    larger = [
        msgspec.structs.replace(s, bytes=s.bytes * 2, observed=1 << 20) for s in old.sites
    ]
    earlier = Earlier("old.yaml", msgspec.structs.replace(old, sites=larger))
    made = plan_run(run, Wishes(), [earlier]).payload()
    (site,) = [s for s in made["sites"] if s["site"] == "x:f:g:h"]
    assert site["why"].startswith("kept from old.yaml")
    assert (site["file"], site["function"]) == ("x:f", "g:h")


@named
def test_sarif(file: str, function: str, short: str) -> None:
    policy = Policy(limits=Limits(sites={f"{file}:*": KIB}))
    judged = judge([_run(file, function, short)], policy, date(2026, 5, 16))
    results = json.loads(sarif.render(judged))["runs"][0]["results"]
    limit = next(result for result in results if result["ruleId"] == "limit/site")
    finding = next(result for result in results if result["ruleId"].startswith("WS1"))
    for (place,) in (limit["locations"], finding["locations"]):
        uri = place["physicalLocation"]["artifactLocation"]["uri"]
        assert unquote(uri) == file
        assert place["logicalLocations"][0]["fullyQualifiedName"] == function


@named
def test_the_figures_of_a_page(file: str, function: str, short: str) -> None:
    run = _run(file, function, short)
    assert short in _labels(render([run]), "sites")
    assert short in _labels(render_pair(run, run), "changes")


def test_a_refusal_of_no_known_site_is_no_site_called_by_a_colon() -> None:
    kept = Failure(kind="persistent", slot=Slot(), phase="serving", key="locks")
    (left,) = not_covered(build.session(build.process(*build.locked(64 * KIB), kept)))
    assert left.site == "unknown site"
