"""A finding as plain JSON values: the contracts of `gate`, `report` and `triage`.

An unknown number is null, never 0; `ranks` is always a list of rank objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from wstrace.bounds.bound import Bound
from wstrace.findings.finding import UNNUMBERED, Finding, FromLog, Sibling
from wstrace.known_sites.known import KnownSite
from wstrace.trace.records import Ranks, Slot, Step
from wstrace.triage.diagnose.relatives import NotTheArena
from wstrace.triage.redaction import redact, redact_value

if TYPE_CHECKING:
    from wstrace.triage.report import Report

Json = dict[str, Any]


def finding_json(finding: Finding) -> Json:
    """One finding. Sizes are bytes; `file` and `function` are null for a finding without a
    site, `slot` for one about no slot, `bound` where none was made. `log` is there for a
    finding from a text only."""
    found: Json = {
        "code": finding.code,
        "severity": finding.severity,
        "title": finding.title,
        "file": finding.file or None,
        "function": finding.function or None,
        "caller": finding.caller or None,
        "slot": slot_json(finding.slot),
        "ranks": ranks_json(finding.ranks),
        "layers": list(finding.layers),
        "warmup_bytes": finding.warmup_bytes,
        "serving_bytes": finding.serving_bytes,
        "arena_bytes": finding.arena_bytes,
        "bound": bound_json(finding.bound),
        "phase": finding.phase,
        "step": _step_json(finding.step),
        "statements": list(finding.statements),
        "detail": finding.detail,
        "advice": finding.advice or None,
    }
    return found if finding.log is None else found | {"log": _log_json(finding, finding.log)}


def _step_json(step: Step | None) -> Json | None:
    """A step as recorded; `index` is null for one that only a text shows."""
    if step is None:
        return None
    found: Json = msgspec.to_builtins(step)
    return found | {"index": None} if step.index == UNNUMBERED else found


def _log_json(finding: Finding, log: FromLog) -> Json:
    """What `gate` and `report` add for a text: the fields of `triage` that they lack."""
    names = (
        "class", "required_text", "current_text", "required_exact", "current_exact",
        "vllm_version", "fixed_in", "fits", "siblings", "source", "confidence", "why",
        "evidence", "times",
    )  # fmt: skip
    told = _triage_finding(finding, log)
    return {name: told[name] for name in names}


def triage_json(report: Report) -> Json:
    """The contract of `wstrace triage --format json`, version 1: a finding for each rank.

    Texts are redacted, the input's own path is not.
    """
    logs = [(finding, finding.log) for finding in report.findings if finding.log]
    return {
        "version": 1,
        "findings": [_triage_finding(finding, log) for finding, log in logs],
        "incidents": [_incident(finding) for finding in report.incidents],
        "relatives": [_relative(relative) for relative in report.relatives],
        "worked": [asdict(worked) for worked in report.worked],
        "config": redact_value(report.config),
        "skipped": report.skipped,
        "notes": list(report.notes),
    }


def _incident(finding: Finding) -> Json:
    """One for all ranks and texts that tell of it, with the worst rank's sizes."""
    log = finding.log
    return {
        "code": finding.code,
        "severity": finding.severity,
        "file": redact(finding.file) or None,
        "function": redact(finding.function) or None,
        "required_bytes": finding.serving_bytes,
        "current_bytes": finding.arena_bytes,
        "class": log.kind if log else None,
        "ranks": ranks_json(finding.ranks),
        "source": _source(log) if log else None,
    }


def _source(log: FromLog) -> Json:
    """`part` is there for a comment of a thread or a member of an archive only."""
    part = {"part": redact(log.part)} if log.part else {}
    return {"path": log.path, "line": log.at, **part}


def _relative(relative: NotTheArena) -> Json:
    """What is not the arena: sizes are bytes, null where unknown."""
    return {
        "kind": relative.kind,
        "title": relative.title,
        "file": relative.file or None,
        "function": relative.function or None,
        "asked_bytes": relative.asked,
        "had_bytes": relative.had,
        "knob": relative.knob,
        "why": relative.why,
        "rank": ranks_json(relative.ranks or [Ranks()])[0],
        "ranks": ranks_json(relative.ranks),
        "source": {"path": relative.path, "line": relative.at},
    }


def _triage_finding(finding: Finding, log: FromLog) -> Json:
    ranks = finding.ranks[0] if finding.ranks else Ranks()
    rule = log.rule
    told: Json = redact_value(
        {
            "code": finding.code,
            "file": finding.file or None,
            "function": finding.function or None,
            "line": log.line,
            "required_bytes": finding.serving_bytes,
            "current_bytes": finding.arena_bytes,
            "required_text": log.required_text,
            "current_text": log.current_text,
            "required_exact": log.required_exact,
            "current_exact": log.current_exact,
            "class": log.kind,
            "rank": ranks_json([ranks])[0],
            "slot": slot_json(finding.slot),
            "layer": finding.layers[0] if finding.layers else None,
            "vllm_version": log.version,
            "known_site": rule.id if rule else None,
            "worst_case": _worst_case(finding.bound),
            "lever": {"flag": rule.lever.flag, "effect": rule.lever.effect} if rule else None,
            "not_levers": _not_levers(rule),
            "fixed_in": log.fixed_in,
            "siblings": [_sibling(sibling) for sibling in log.siblings],
            "fits": [{"since": since, "until": until or None} for since, until in log.fits],
        }
    )
    return told | {
        "links": list(rule.links) if rule else [],
        "source": _source(log),
        **redact_value(
            {
                "confidence": log.confidence,
                "why": log.why,
                "evidence": list(log.evidence),
                "phase": finding.phase,
                "step": _triage_step(finding.step),
                "name": log.name,
                "module": log.module,
                "times": log.times,
            }
        ),
    }


def _sibling(sibling: Sibling) -> Json:
    return {
        "file": sibling.file,
        "function": sibling.function,
        "known_site": sibling.rule.id,
        "reserved": sibling.cover.covers,
        "why": sibling.why,
        "worst_case": _worst_case(sibling.bound),
    }


def _not_levers(rule: KnownSite | None) -> list[Json]:
    return [{"flag": f.flag, "why": f.why} for f in rule.not_levers] if rule else []


def _worst_case(bound: Bound | None) -> Json:
    known = bound or Bound()
    return {
        "bytes": known.bytes,
        "formula": known.formula,
        "grade": known.grade if known.bytes is not None else None,
        "needs": list(known.needs),
        "assumed": list(known.assumed),
        "contradiction": known.contradiction or None,
    }


def _triage_step(step: Step | None) -> Json | None:
    if step is None:
        return None
    requests = [{"scheduled": r.scheduled, "computed": r.computed} for r in step.requests]
    return {"total_tokens": step.total_tokens or None, "requests": requests}


def slot_json(slot: Slot | None) -> Json | None:
    """`{"ubatch": 0, "lane": 0}`, or null."""
    return None if slot is None else {"ubatch": slot.ubatch, "lane": slot.lane}


def ranks_json(ranks: Iterable[Ranks]) -> list[Json]:
    """`[{"dp", "tp", "pp", "ep"}]`, null where unknown. Where a text has no more than a
    process's number, `rank`, and its host's, `node`, are there too."""
    return [{"dp": r.dp, "tp": r.tp, "pp": r.pp, "ep": r.ep, **_numbers(r)} for r in ranks]


def _numbers(ranks: Ranks) -> Json:
    if any(place is not None for place in (ranks.dp, ranks.tp, ranks.pp, ranks.ep)):
        return {}
    told = {"rank": ranks.rank, "node": ranks.node}
    return {name: number for name, number in told.items() if number is not None}


def bound_json(bound: Bound | None) -> Json | None:
    """A bound in bytes with its grade, its formula and what stands behind them."""
    if bound is None:
        return None
    return {
        "bytes": bound.bytes,
        "grade": bound.grade,
        "formula": bound.formula,
        "constants": dict(bound.constants),
        "drivers": dict(bound.drivers),
        "at": dict(bound.at),
        "needs": list(bound.needs),
        "lever": bound.lever,
        "known_site": bound.known_site,
        "why": bound.why,
        "ways": [asdict(way) for way in bound.ways],
    }
