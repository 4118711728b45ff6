"""A pasted log in the place of a trace: gate, its formats, and the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.unit.triage.generator import Failure, log_lines
from wstrace.cli.commands import gate, report
from wstrace.errors import WstraceError

APP = typer.Typer()
APP.command("gate")(gate.command)
APP.command("report")(report.command)
TEXT = "\n".join(
    log_lines(Failure(required=9.94, current=2.05).traceback(), "EngineCore pid=1")
)
ASKED, HAD = 10_422_845, 2_149_581  # 9.94 and 2.05 times 2**20, rounded
CALLER = "turboquant_attn.py:747:_continuation_prefill"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "crash.log"
    path.write_text(TEXT, "utf-8")
    return path


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(word) for word in arguments])


def test_a_failure_fails_the_gate(log: Path) -> None:
    result = _run("gate", log)
    assert result.exit_code == 1
    assert (
        "WS101 new: turboquant_attn.py:_continuation_prefill: asked for 9.94 MB, had 2.05 MB"
        in (result.stdout)
    )
    assert "exercised" not in result.stdout


def test_a_text_without_a_failure_shows_no_clean_run(log: Path) -> None:
    log.write_text("INFO 01-01 00:00:00 [api_server.py:1] all is well\n", "utf-8")
    result = _run("gate", log)
    assert result.exit_code == 3
    assert "a log can show a failure, not that a run was clean" in result.stdout


def test_the_json_is_that_of_a_trace_with_the_log_added(log: Path) -> None:
    made = json.loads(_run("gate", log, "--format", "json").stdout)
    (finding,) = made["findings"]
    assert (made["verdict"], finding["code"], finding["status"]) == ("findings", "WS101", "new")
    assert (finding["serving_bytes"], finding["arena_bytes"]) == (ASKED, HAD)
    assert (finding["caller"], finding["warmup_bytes"]) == (CALLER, None)
    assert finding["log"]["source"]["line"] == 9
    assert finding["log"]["required_text"] == "9.94 MB"


def test_junit_measures_nothing_that_a_log_does_not_tell(log: Path) -> None:
    root = ET.fromstring(_run("gate", log, "--format", "junit").stdout)
    assert [f.get("type") for f in root.iter("failure")] == ["WS101"]
    names = {p.get("name") for p in root.iter("property")}
    assert "wstrace.steps" not in names


def test_sarif_and_github_name_the_line_of_the_site(log: Path) -> None:
    (result,) = json.loads(_run("gate", log, "--format", "sarif").stdout)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (result["ruleId"], place["region"]["startLine"]) == ("WS101", 747)
    shown = _run("gate", log, "--format", "github").stdout
    assert "::error file=turboquant_attn.py,line=747,title=WS101" in shown


def test_a_baseline_accepts_it_and_the_log_stays_inconclusive(
    log: Path, tmp_path: Path
) -> None:
    accepted = tmp_path / "accepted.toml"
    _run("gate", log, "--write-baseline", accepted, "--reason", "known")
    result = _run("gate", log, "--baseline", accepted)
    assert result.exit_code == 3
    assert "known" in result.stdout


@pytest.mark.parametrize("name", ["r.html", "r.md", "r.txt", "r.json"])
def test_a_report_of_a_log(log: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    assert _run("report", log, "-o", target).exit_code == 0
    text = target.read_text("utf-8").replace("<wbr>", "")
    assert CALLER in text
    assert "WS101" in text
    assert "9.94" in text
    assert "no worker" not in text


def test_the_fix_of_the_page_reads_the_log_again(log: Path, tmp_path: Path) -> None:
    _run("report", log, "-o", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text("utf-8")
    text = re.sub("<[^>]+>", "", page)
    assert f"wstrace triage {log} --set block_size=N --set head_size=N" in text


@pytest.mark.parametrize("text", ["", '{"t":"nonsense"}'])
def test_a_broken_trace_is_no_log(tmp_path: Path, text: str) -> None:
    path = tmp_path / "part.txt"
    path.write_text(text, "utf-8")
    assert isinstance(_run("gate", path).exception, WstraceError)
