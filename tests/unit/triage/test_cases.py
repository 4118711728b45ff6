"""Public reports: what triage reads out of them against a table written from the reports."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.triage.generator import (
    FORMATS,
    Failure,
    bound_of,
    log_lines,
    log_of,
    read,
    rule_of,
)
from wstrace.findings.finding import Finding
from wstrace.trace.records import ScheduledRequest, Slot
from wstrace.triage.diagnose.diagnose import Diagnosis
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.ingest.ranks import named

ROOT = Path(__file__).parents[3]
TABLE = tomllib.loads((ROOT / "tests/data/triage/expected.toml").read_text("utf-8"))["case"]
WITH_SIZES = [case for case in TABLE if any("required" in f for f in case["finding"])]
REPORTS = next(ROOT.parent.glob("*/cases/logs"), None)


def _check(found: Diagnosis, case: dict[str, Any]) -> None:
    assert len(found.findings) == len(case["finding"])
    for finding, wanted in zip(found.findings, case["finding"], strict=True):
        _check_text(finding, wanted)
        _check_conclusions(finding, wanted)


def _check_text(finding: Finding, wanted: dict[str, Any]) -> None:
    said = {
        "file": finding.file, "function": finding.function,
        "line": log_of(finding).line, "name": log_of(finding).name,
    }  # fmt: skip
    assert said.items() >= {(n, v) for n, v in wanted.items() if n in said}
    if "required" not in wanted:
        return
    assert log_of(finding).required_text == f"{wanted['required']:.2f} MB"
    assert log_of(finding).current_text == f"{wanted['current']:.2f} MB"
    assert finding.arena_bytes == round(wanted["current"] * 2**20)
    rounded = round(wanted["required"] * 2**20)
    assert finding.serving_bytes == wanted.get("exact", rounded)
    assert log_of(finding).required_exact == ("exact" in wanted)


def _check_conclusions(finding: Finding, wanted: dict[str, Any]) -> None:
    assert log_of(finding).kind == wanted["class"]
    ranks = named(finding.ranks[0]) if finding.ranks else {}
    ranks.pop("dcp", None)
    if "rank" in wanted:
        assert ranks == wanted["rank"]
    if "site" in wanted:
        assert rule_of(finding).id == wanted["site"]
        assert rule_of(finding).lever.flag
    if "fixed_in" in wanted:
        assert log_of(finding).fixed_in == wanted["fixed_in"]
    if "worst" in wanted:
        assert bound_of(finding).bytes == wanted["worst"]
        assert bound_of(finding).grade == "proved"
    if "slot" in wanted:
        assert finding.slot == Slot(wanted["slot"]["ubatch"], wanted["slot"]["lane"])
    if "step" in wanted:
        assert finding.step is not None
        assert finding.step.requests == [ScheduledRequest(*wanted["step"])]
    assert log_of(finding).confidence == wanted.get("confidence", log_of(finding).confidence)


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case["id"])
def test_report(case: dict[str, Any]) -> None:
    if REPORTS is None:
        pytest.skip("the reports are not beside this checkout")
    text = (REPORTS / f"{case['id']}.log").read_bytes()
    _check(read(text, Given(case.get("set", {}))), case)


def test_every_report_is_in_the_table() -> None:
    if REPORTS is None:
        pytest.skip("the reports are not beside this checkout")
    known = {case["id"] for case in TABLE}
    assert {path.stem for path in REPORTS.glob("*.log")} <= known


@pytest.mark.parametrize(
    "form", ["compose", "kubectl", "cri", "quoted", "ansi", "crlf", "html"]
)
def test_every_report_through_every_collector(form: str) -> None:
    if REPORTS is None:
        pytest.skip("the reports are not beside this checkout")
    for path in sorted(REPORTS.glob("*.log")):
        text = path.read_text("utf-8")
        dressed = "\n".join(FORMATS[form](text.split("\n")))
        assert _told(read(dressed)) == _told(read(text)), path.name


def _told(found: Diagnosis) -> list[tuple[object, ...]]:
    return [
        (
            log_of(f).kind,
            f.file,
            f.function,
            log_of(f).required_text,
            log_of(f).current_text,
            log_of(f).name,
            f.ranks,
        )
        for f in found.findings
    ]


@pytest.mark.parametrize("case", WITH_SIZES, ids=lambda case: case["id"])
def test_rebuilt_from_the_table(case: dict[str, Any]) -> None:
    """The same facts from texts made here, so that this runs anywhere."""
    lines: list[str] = []
    for wanted in case["finding"]:
        if wanted["class"] == "over_reserved":
            lines += _resize(wanted)
            continue
        failure = Failure(
            wanted["file"], wanted["line"], wanted["function"], wanted["required"],
            wanted["current"],
        )  # fmt: skip
        lines += log_lines(failure.traceback(), _label(wanted))
    without = {**case, "finding": [_without_step(f) for f in case["finding"]]}
    _check(read("\n".join(lines), Given(case.get("set", {}))), without)


def _without_step(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if name != "step"}


def _label(wanted: dict[str, Any]) -> str:
    ranks = wanted.get("rank", {})
    if not ranks:
        return "EngineCore pid=96"
    names = [
        f"{kind.upper()}{ranks[kind]}" for kind in ("dp", "pp", "tp", "ep") if kind in ranks
    ]
    return f"Worker_{'_'.join(names)} pid=101"


def _resize(wanted: dict[str, Any]) -> list[str]:
    caller = f"{wanted['file']}:{wanted['line']}:{wanted['function']}"
    label = _label(wanted)
    return [
        f"({label}) INFO 09-01 10:02:11 [workspace.py:190] [WORKSPACE DEBUG] Resized workspace "
        f"from '{caller}': {wanted['current']:.2f} MB -> {wanted['required']:.2f} MB "
        "(ubatch 0)",
        f"({label}) INFO 09-01 10:05:02 [workspace.py:90] [WORKSPACE DEBUG] Workspace locked. "
        f"Current sizes: [{wanted['exact'] / 2**20!r}]",
    ]
