"""The gate's judgement as JSON, version 1: see docs/gate.md for the contract."""

from __future__ import annotations

import json
from typing import Any, Final

from wstrace.gate.baseline import Entry
from wstrace.gate.judge import Judged, Judgement, RunJudgement
from wstrace.gate.limits import Violation, model_of
from wstrace.report.finding_json import finding_json, ranks_json, slot_json
from wstrace.report.json import rests_on_json
from wstrace.runs.exercised import Reach

VERSION: Final = 1
Json = dict[str, Any]


def render(judgement: Judgement) -> str:
    """`{"version": 1, "verdict", "findings", ...}`; sizes are bytes, unknown ones null."""
    return json.dumps(judgement_json(judgement), indent=2, ensure_ascii=False) + "\n"


def judgement_json(judgement: Judgement) -> Json:
    """The judgement as plain values. `findings` are those of all runs, failing ones first."""
    return {
        "version": VERSION,
        "verdict": judgement.verdict,
        "exit_code": judgement.exit_code,
        "findings": [_finding(run, judged) for run, judged in judgement.findings],
        "inconclusive": [reason for run in judgement.runs for reason in run.reasons],
        "limits": [_violation(run, v) for run in judgement.runs for v in run.violations],
        "baseline": {
            "fixed": [_entry(entry) for entry in judgement.fixed],
            "not_reached": [_entry(entry) for entry in judgement.unseen],
        },
        "runs": [_run(run) for run in judgement.runs],
        "notes": list(judgement.notes),
    }


def _finding(run: RunJudgement, judged: Judged) -> Json:
    accepted = None if judged.entry is None else _entry(judged.entry)
    return finding_json(judged.finding) | {
        "status": judged.status,
        "fails": judged.fails,
        "accepted": accepted,
        "fingerprint": judged.place.fingerprint,
        "run": run.analysed.trace.run,
    }


def _entry(entry: Entry) -> Json:
    return {
        "code": entry.code,
        "site": entry.site or None,
        "slot": entry.slot or None,
        "bytes": entry.bytes,
        "reason": entry.reason or None,
        "expires": entry.expires.isoformat() if entry.expires else None,
    }


def _violation(run: RunJudgement, violation: Violation) -> Json:
    return {
        "rule": violation.rule,
        "detail": violation.detail,
        "site": violation.site or None,
        "slot": slot_json(violation.slot),
        "bytes": violation.value,
        "limit_bytes": violation.limit,
        "run": run.analysed.trace.run,
    }


def _run(run: RunJudgement) -> Json:
    analysed = run.analysed
    return {
        "run": analysed.trace.run or None,
        "vllm": analysed.workers[0].header.vllm if analysed.workers else None,
        "model": model_of(analysed) or None,
        "ranks": ranks_json(worker.ranks for worker in analysed.workers),
        "verdict": run.verdict,
        "inconclusive": list(run.reasons),
        "exercised": _reach(run.reach),
        "rests_on": rests_on_json(analysed),
    }


def _reach(reach: Reach) -> Json:
    measures = {m.name: {"most": m.most, "limit": m.limit} for m in reach.measures}
    sites = [
        {
            "site": site.site,
            "in_serving": site.in_serving,
            "captured": site.captured,
            "bytes": site.most,
            "bound_bytes": site.bound,
            "grade": site.grade,
            "share": site.share,
        }
        for site in reach.sites
    ]
    return {**measures, "share": reach.share, "by_site": sites}
