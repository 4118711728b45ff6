"""The report as JSON, version 1: the gate's findings, and every site."""

from __future__ import annotations

import json
from typing import Any

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.finding_json import bound_json, finding_json, ranks_json, slot_json
from wstrace.report.verdict import sentence
from wstrace.runs.accounting import accounting
from wstrace.runs.run import RunSite
from wstrace.runs.worker import Worker

VERSION = 1


def render_json(run: AnalysedRun) -> str:
    """`{"version": 1, "verdict", "sentence", "findings", "sites", "run", "notes"}`."""
    return json.dumps(run_json(run), indent=2, ensure_ascii=False) + "\n"


def run_json(run: AnalysedRun) -> dict[str, Any]:
    """A run as plain data; sizes in bytes, unknown numbers null."""
    return {
        "version": VERSION,
        "verdict": run.verdict(),
        "sentence": sentence(run),
        "findings": [finding_json(f) for f in run.findings],
        "inconclusive": run.inconclusive,
        "sites": [site_json(site) for site in run.sites],
        "run": _run(run),
        "notes": run.notes,
        "rests_on": rests_on_json(run),
    }


def rests_on_json(run: AnalysedRun) -> dict[str, Any]:
    """What the verdict rests on: processes with their ends, the command, the recorder."""
    of = run.rests_on
    return {
        "processes": [
            {
                "name": p.name,
                "worker": p.worker,
                "records": p.records,
                "seconds": round(p.seconds, 3),
                "phase": p.phase or None,
                "end": p.end,
                "died": p.died or None,
            }
            for p in of.processes
        ],
        "command": of.command or None,
        "release": of.release or None,
        "recorder": list(of.recorder),
        "doubts": list(of.doubts),
        "beyond": of.beyond or None,
    }


def site_json(site: RunSite) -> dict[str, Any]:
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
        "outcome": site.outcome,
        "replayed": site.replayed,
        "statements": provenance.statements if provenance else [],
        "stopped": provenance.stopped if provenance else None,
    }


def _kv_sizing(worker: Worker) -> dict[str, Any]:
    """Bytes that the arenas gained, by what KV sizing made of them."""
    of = accounting(worker)
    return {
        "counted": of.counted,
        "not_counted": of.not_counted,
        "unknown": of.unknown,
        "available_kv_bytes": worker.memory.available_kv_bytes,
        "fixed_by": worker.memory.fixed_kv,
    }


def _run(run: AnalysedRun) -> dict[str, Any]:
    meta = run.trace.meta
    workers = [
        {
            "ranks": ranks_json([worker.ranks])[0],
            "vllm": worker.header.vllm,
            "torch": worker.header.torch,
            "runner": worker.init.runner,
            "locked": [
                {"slot": slot_json(slot), "bytes": size}
                for slot, size in worker.locked_sizes.items()
            ],
            "kv_sizing": _kv_sizing(worker),
            "limits": worker.limits,
        }
        for worker in run.workers
    ]
    return {
        "id": run.trace.run,
        "command": meta.command if meta else None,
        "exit_code": meta.exit_code if meta else None,
        "workers": workers,
    }
