"""Texts as strangers paste them: every release, every kind of runner, cut, retold, of others.

The texts and what is right for each stand in strangers.toml, one line a finding: code, site,
sizes, class, certainty, ranks; one line for what is not the arena; and the exit code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.triage.generator import FORMATS, log_of
from tests.unit.triage.generator import read as diagnosed
from wstrace.cli.commands import triage
from wstrace.findings.finding import Finding
from wstrace.report.finding_text import ranks_text
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.diagnose.relatives import NotTheArena
from wstrace.triage.report import Report, read

TEXTS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parents[2] / "data/triage/strangers.toml").read_text("utf-8")
)["text"]


def _line(finding: Finding) -> str:
    log = log_of(finding)
    sizes = f"{log.required_text or '-'} > {log.current_text or '-'}"
    ranks = f" [{ranks_text(finding.ranks)}]" if finding.ranks else ""
    what = f"{finding.code} {finding.severity} {finding.where}: {sizes}: {log.kind}"
    return f"{what} {log.confidence}{ranks}"


def _beside(relative: NotTheArena) -> str:
    return f"{relative.kind}: {relative.asked or '-'} > {relative.had or '-'}"


def told(report: Report) -> Iterator[str]:
    """What the table has of a text."""
    yield from map(_line, report.incidents)
    yield from map(_beside, report.relatives)
    for worked in report.worked:
        yield f"worked in {worked.part}: {', '.join(worked.settings)}"


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case["id"])
def test_a_text(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "pasted.txt"
    path.write_text(case["text"], "utf-8")
    report = read([str(path)], Given())
    assert list(told(report)) == case["told"]
    assert (3 if report.only_relatives else 0) == case.get("exit", 0)
    versions = {log_of(finding).version for finding in report.incidents}
    assert versions <= {case.get("version"), None}


@pytest.mark.parametrize("id_", ["kv-small", "tq-0210-ray", "talk-1"])
def test_the_exit_code_of_the_command(id_: str, tmp_path: Path) -> None:
    (case,) = (case for case in TEXTS if case["id"] == id_)
    path = tmp_path / "pasted.txt"
    path.write_text(case["text"], "utf-8")
    app = typer.Typer()
    app.command()(triage.command)
    assert CliRunner().invoke(app, [str(path)]).exit_code == case.get("exit", 0)


def test_every_release_and_class_is_among_the_texts() -> None:
    minors = {case["version"].split(".")[1] for case in TEXTS if "version" in case}
    assert {str(minor) for minor in range(13, 34)} <= minors
    every = "\n".join(line for case in TEXTS for line in case["told"])
    for kind in (
        "never_profiled", "undersized_in_profile", "wrong_slot", "order_of_warmup",
        "persistent_resource_missing", "unlocked_growth_oom", "pointer_moved_after_capture",
        "over_reserved", "unknown", "flashinfer_buffer", "kernel_scratch", "no_manager",
        "fitted_context", "kv_cache", "graph_memory", "shared_memory", "communicator",
        "all2all_buffer",
    ):  # fmt: skip
        assert kind in every


# not those whose form is what they show
WRAPPED = [
    case
    for case in TEXTS
    if not case["id"].startswith(("gh-md", "table", "srun", "tail-f", "grep-n"))
    and not case["text"].startswith("{")
]


@pytest.mark.parametrize("number", range(len(FORMATS)), ids=list(FORMATS))
def test_the_same_through_a_collector(number: int) -> None:
    """Each text through one of the collectors, all of them together through every one."""
    form = list(FORMATS.values())[number]
    for case in WRAPPED[number :: len(FORMATS)]:
        lines = case["text"].rstrip("\n").split("\n")
        assert _facts("\n".join(form(lines))) == _facts("\n".join(lines)), case["id"]


def _facts(text: str) -> list[str]:
    found = diagnosed(text)
    lines = [_line(finding).partition(" [")[0] for finding in found.findings]
    return sorted([*lines, *map(_beside, found.relatives)])
