"""The report as JSON, version 1: the gate's findings, and every site."""

from __future__ import annotations

import json
from typing import Any

from wstrace.report.finding_json import bound_json, finding_json, ranks_json, slot_json
from wstrace.report.verdict import sentence
from wstrace.runs.accounting import accounting
from wstrace.runs.run import Session, SiteSummary
from wstrace.runs.worker import RankView

VERSION = 1


def render_json(session: Session) -> str:
    """`{"version": 1, "verdict", "sentence", "findings", "sites", "run", "notes"}`."""
    return json.dumps(session_json(session), indent=2, ensure_ascii=False) + "\n"


def session_json(session: Session) -> dict[str, Any]:
    """A session as plain data; sizes in bytes, unknown numbers null."""
    return {
        "version": VERSION,
        "verdict": session.verdict(),
        "sentence": sentence(session),
        "findings": [finding_json(f) for f in session.findings],
        "inconclusive": session.inconclusive,
        "sites": [site_json(site) for site in session.sites],
        "run": _run(session),
        "notes": session.notes,
    }


def site_json(site: SiteSummary) -> dict[str, Any]:
    """One site in one slot over all ranks."""
    worst = site.worst
    provenance = worst.provenance if worst else None
    return {
        "file": site.key.file,
        "function": site.key.function,
        "caller": site.caller,
        "slot": slot_json(site.slot),
        "ranks": ranks_json(site.ranks),
        "layers": site.layers,
        "calls": site.calls,
        "warmup_bytes": site.warmup_bytes,
        "serving_bytes": site.serving_bytes,
        "arena_bytes": site.arena_bytes,
        "bound": bound_json(site.bound),
        "statements": provenance.statements if provenance else [],
        "stopped": provenance.stopped if provenance else None,
    }


def _kv_sizing(view: RankView) -> dict[str, Any]:
    """Bytes that the arenas gained, by what KV sizing made of them."""
    of = accounting(view)
    return {
        "counted": of.counted,
        "not_counted": of.not_counted,
        "unknown": of.unknown,
        "available_kv_bytes": view.memory.available_kv_bytes,
        "fixed_by": view.memory.fixed_kv,
    }


def _run(session: Session) -> dict[str, Any]:
    meta = session.trace.meta
    workers = [
        {
            "ranks": ranks_json([view.ranks])[0],
            "vllm": view.header.vllm,
            "torch": view.header.torch,
            "runner": view.worker.runner,
            "locked": [
                {"slot": slot_json(slot), "bytes": size}
                for slot, size in view.locked_sizes.items()
            ],
            "kv_sizing": _kv_sizing(view),
            "limits": view.limits,
        }
        for view in session.ranks
    ]
    return {
        "id": session.trace.run,
        "command": meta.command if meta else None,
        "exit_code": meta.exit_code if meta else None,
        "workers": workers,
    }
