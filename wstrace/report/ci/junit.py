"""The gate's judgement as JUnit XML: a test case a site, read by every CI system.

A failing finding is a <failure>, a run that cannot show anything an <error>, and what does
not fail is said in <system-out>. Text that XML 1.0 cannot carry is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from wstrace.findings.codes import INCONCLUSIVE_FAMILY
from wstrace.gate.judge import Judged, Judgement, RunJudgement
from wstrace.gate.place import slot_kind
from wstrace.report.ci.gate_lines import (
    accepted_line,
    exercised,
    explain,
    grounds,
    numbers,
    run_line,
    violation_line,
)
from wstrace.report.finding_text import slot_text

# what XML 1.0 has no way to write
# matches: "\x1b"
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(judgement: Judgement) -> str:
    """<testsuites> with a <testsuite> a run."""
    root = ET.Element("testsuites", name="wstrace gate")
    for run in judgement.runs:
        root.append(_suite(run))
    _count(root, root.iter("testcase"))
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _suite(run: RunJudgement) -> ET.Element:
    suite = ET.Element("testsuite", name=_clean(run_line(run)))
    properties = ET.SubElement(suite, "properties")
    for name, value in _facts(run):
        ET.SubElement(properties, "property", name=name, value=_clean(value))
    suite.append(_conclusive(run))
    suite.extend(_sites(run))
    suite.extend(_limits(run))
    _count(suite, suite.iter("testcase"))
    return suite


def _facts(run: RunJudgement) -> Iterable[tuple[str, str]]:
    yield "wstrace.verdict", run.verdict
    yield "wstrace.run", run.analysed.trace.run
    for measure in run.reach.measures if exercised(run) else ():
        yield f"wstrace.{measure.name}", str(measure.most)
        if measure.limit is not None:
            yield f"wstrace.{measure.name}.limit", str(measure.limit)
    yield "wstrace.rests_on", "; ".join(grounds(run))
    yield "wstrace.exercised", "; ".join(exercised(run))


def _conclusive(run: RunJudgement) -> ET.Element:
    case = _case("wstrace", "the trace is conclusive")
    if run.reasons:
        text = "\n".join(run.reasons)
        error = ET.SubElement(
            case, "error", message=_clean(run.reasons[0]), type=INCONCLUSIVE_FAMILY
        )
        error.text = _clean(text)
    return case


def _sites(run: RunJudgement) -> Iterable[ET.Element]:
    """A case for every site and slot, then one for each finding that has no site."""
    judged = [j for j in run.findings if j.finding.severity != "inconclusive"]
    places: dict[tuple[str, str, str], list[Judged]] = {}
    for site in run.analysed.sites:
        places[site.key.file, site.key.function, slot_kind(site.slot)] = []
    for one in judged:
        finding = one.finding
        name = finding.function or f"{finding.code} {finding.title}"
        places.setdefault(
            (finding.file or "wstrace", name, slot_kind(finding.slot)), []
        ).append(one)
    for (file, name, kind), found in places.items():
        slot = "" if kind in ("", "main") else f" [{kind}]"
        yield _site(_case(file, name + slot), found)


def _site(case: ET.Element, found: list[Judged]) -> ET.Element:
    failing = [judged for judged in found if judged.fails]
    if failing:
        worst = failing[0]
        failure = ET.SubElement(
            case,
            "failure",
            message=_clean(f"{worst.finding.code}: {worst.finding.title}"),
            type=worst.finding.code,
        )
        failure.text = _clean("\n".join(line for j in failing for line in _evidence(j)))
    rest = [_passing(judged) for judged in found if not judged.fails]
    if rest:
        ET.SubElement(case, "system-out").text = _clean("\n".join(rest))
    return case


def _evidence(judged: Judged) -> list[str]:
    finding = judged.finding
    lines = [f"{finding.code} {judged.status}: {explain(judged)}", numbers(judged)]
    return [line for line in [*lines, finding.advice] if line]


def _passing(judged: Judged) -> str:
    if judged.status == "accepted":
        return f"accepted: {accepted_line(judged)}"
    return f"{judged.finding.code} {judged.finding.severity}: {judged.finding.detail}"


def _limits(run: RunJudgement) -> Iterable[ET.Element]:
    for violation in run.violations:
        case = _case(violation.rule, violation.site or slot_text(violation.slot) or "arena")
        ET.SubElement(
            case, "failure", message=_clean(violation_line(violation)), type=violation.rule
        )
        yield case


def _case(classname: str, name: str) -> ET.Element:
    return ET.Element("testcase", classname=_clean(classname), name=_clean(name), time="0")


def _count(element: ET.Element, cases: Iterable[ET.Element]) -> None:
    listed = list(cases)
    element.set("tests", str(len(listed)))
    for tag, attribute in (("failure", "failures"), ("error", "errors")):
        element.set(attribute, str(sum(case.find(tag) is not None for case in listed)))
    element.set("time", "0")


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
