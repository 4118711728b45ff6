"""The gate's judgement as SARIF 2.1.0, for code scanning.

A result's identity is its fingerprint (code, site, kind of slot), so that a finding keeps it
when lines move. Findings about an arena and not a site point at vLLM's workspace module.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

import wstrace
from wstrace.findings.codes import TITLES
from wstrace.gate.judge import Judged, Judgement, RunJudgement
from wstrace.gate.limits import Violation
from wstrace.report.ci.gate_lines import explain, line_of, numbers, violation_line
from wstrace.report.pages import docs_url, page_url, site_url
from wstrace.trace.site_key import SiteKey
from wstrace.vllm import arena

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
# vLLM 0.13.0 to 0.33.0: the file of WorkspaceManager, for findings that no layer's file fits.
LEVELS: Final = {
    "error": "error",
    "warning": "warning",
    "inconclusive": "warning",
    "note": "note",
}
BASELINE: Final = {
    "new": "new",
    "grown": "updated",
    "expired": "unchanged",
    "accepted": "unchanged",
}
RULES: Final[dict[str, str]] = TITLES | {
    "limit/arena": "an arena is larger than allowed",
    "limit/site": "a request is larger than allowed",
    "limit/grade": "a bound is less sure than required",
}
Json = dict[str, Any]


def render(judgement: Judgement) -> str:
    """One SARIF run for each traced run."""
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [_run(run) for run in judgement.runs],
    }
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _run(run: RunJudgement) -> Json:
    results = [_result(run, judged) for judged in run.findings]
    results += [_violation(violation) for violation in run.violations]
    used = sorted({result["ruleId"] for result in results})
    for result in results:
        result["ruleIndex"] = used.index(result["ruleId"])
    return {
        "tool": {
            "driver": {
                "name": "wstrace",
                "version": wstrace.__version__,
                **({"informationUri": site} if (site := site_url()) else {}),
                "rules": [_rule(code) for code in used],
            }
        },
        "automationDetails": {"id": f"wstrace/{quote(run.analysed.trace.run or 'none')}"},
        "invocations": [_invocation(run)],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }


def _rule(code: str) -> Json:
    rule = {"id": code, "shortDescription": {"text": RULES[code]}}
    if code in TITLES:
        url, text = page_url(code), f"wstrace explain {code} says what to do."
    else:  # a limit of [tool.wstrace]
        url, text = docs_url("gate"), "See docs/gate.md of wstrace."
    return rule | {"help": {"text": text}} | ({"helpUri": url} if url else {})


def _invocation(run: RunJudgement) -> Json:
    """A gate that could not conclude says so here: an empty result list would look clean."""
    return {
        "executionSuccessful": not run.reasons,
        "toolExecutionNotifications": [
            {"level": "error", "message": {"text": reason}} for reason in run.reasons
        ],
        "properties": {"restsOn": run.analysed.rests_on.lines()},
    }


def _result(run: RunJudgement, judged: Judged) -> Json:
    finding = judged.finding
    text = [explain(judged), numbers(judged), finding.advice]
    result: Json = {
        "ruleId": finding.code,
        "kind": "fail",
        "level": LEVELS[finding.severity],
        "message": {"text": "\n".join(line for line in text if line)},
        "locations": [location(finding.file, finding.function, line_of(run, finding))],
        "partialFingerprints": {"wstraceSite/v1": judged.place.fingerprint},
        "properties": {
            "status": judged.status,
            "servingBytes": finding.serving_bytes,
            "arenaBytes": finding.arena_bytes,
            "warmupBytes": finding.warmup_bytes,
        },
    }
    if judged.status in BASELINE:
        result["baselineState"] = BASELINE[judged.status]
    if judged.status == "accepted" and judged.entry is not None:
        result["suppressions"] = [
            {
                "kind": "external",
                "status": "accepted",
                "justification": judged.entry.reason or "accepted in the baseline",
            }
        ]
    return result


def location(file: str, function: str, line: int) -> Json:
    """A place in vLLM: its file (the manager's where there is none) and function."""
    path = PurePosixPath(file or f"vllm/{arena.FILE}")
    location: Json = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(str(path)), "uriBaseId": "SRCROOT"},
            "region": {"startLine": max(line, 1)},
        }
    }
    if function:
        location["logicalLocations"] = [{"fullyQualifiedName": function, "kind": "function"}]
    return location


def _violation(violation: Violation) -> Json:
    key = violation.key or SiteKey("", "")
    return {
        "ruleId": violation.rule,
        "kind": "fail",
        "level": "error",
        "message": {"text": violation_line(violation)},
        "locations": [location(key.file, key.function, 0)],
        "partialFingerprints": {"wstraceSite/v1": violation.place.fingerprint},
    }
