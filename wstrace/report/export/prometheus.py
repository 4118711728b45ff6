"""Prometheus metrics of a run, in the text form that node_exporter's textfile collector reads.

`METRICS` is the whole list: docs/dashboards.md and dashboards/grafana/wstrace.json use no
other name, and tests hold them to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.runs.worker import Worker, WorkerSite
from wstrace.trace.records import Slot
from wstrace.trace.redact import redact_text

Labels = dict[str, str]
Sample = tuple[Labels, float]
LONGEST_LABEL: Final = 200


@dataclass(frozen=True)
class Metric:
    """One metric family: its name, kind, help text, and what gives its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Callable[[AnalysedRun], Iterable[Sample]]


def render_prometheus(run: AnalysedRun) -> str:
    """All metrics of a run; a family without a sample is left out."""
    lines: list[str] = []
    for metric in METRICS:
        samples = [_line(metric.name, *sample) for sample in metric.samples(run)]
        if samples:
            lines += [f"# HELP {metric.name} {metric.help}"]
            lines += [f"# TYPE {metric.name} {metric.kind}", *samples]
    return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    number = str(int(value)) if value == int(value) else repr(value)
    return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def _escape(text: str) -> str:
    clean = redact_text(text[:4096])
    if max(len(text), len(clean)) > LONGEST_LABEL:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
        clean = f"{clean[:LONGEST_LABEL]}…{digest}"
    return clean.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _rank(worker: Worker) -> Labels:
    ranks = worker.ranks
    named = {"dp": ranks.dp, "pp": ranks.pp, "tp": ranks.tp}
    return {name: str(value or 0) for name, value in named.items()}


def _slot(slot: Slot) -> Labels:
    return {"ubatch": str(slot.ubatch), "lane": str(slot.lane)}


def _info(run: AnalysedRun) -> Iterator[Sample]:
    header = run.workers[0].header if run.workers else None
    yield (
        {
            "run": run.trace.run,
            "vllm": (header.vllm or "") if header else "",
            "torch": (header.torch or "") if header else "",
            "wstrace": header.wstrace if header else "",
        },
        1,
    )


def _verdict(run: AnalysedRun) -> Iterator[Sample]:
    for verdict in ("clean", "findings", "inconclusive"):
        yield {"verdict": verdict}, float(run.verdict() == verdict)


def _findings(run: AnalysedRun) -> Iterator[Sample]:
    counted: dict[tuple[str, str], int] = {}
    for finding in run.findings:
        key = finding.code, finding.severity
        counted[key] = counted.get(key, 0) + 1
    for (code, severity), count in sorted(counted.items()):
        yield {"code": code, "severity": severity}, count


def _arenas(size: Callable[[Worker, Slot], int]) -> Callable[[AnalysedRun], Iterator[Sample]]:
    def samples(run: AnalysedRun) -> Iterator[Sample]:
        for worker in run.workers:
            for slot in worker.slots():
                yield {**_rank(worker), **_slot(slot)}, size(worker, slot)

    return samples


def _reserved(worker: Worker, slot: Slot) -> int:
    sizes = [
        dict(zip(event.slots, event.sizes, strict=False)).get(slot, 0)
        for event in worker.reserves
        if event.event == "applied"
    ]
    return sizes[-1] if sizes else 0


def _locked(run: AnalysedRun) -> Iterator[Sample]:
    for worker in run.workers:
        yield _rank(worker), float(worker.last_lock is not None)


def _growths(run: AnalysedRun) -> Iterator[Sample]:
    for worker in run.workers:
        counted: dict[tuple[Slot, str], int] = {}
        for growth in worker.growths:
            when = "after_lock" if growth.locked else "before_lock"
            counted[growth.slot, when] = counted.get((growth.slot, when), 0) + 1
        for (slot, when), count in sorted(counted.items()):
            yield {**_rank(worker), **_slot(slot), "when": when}, count


def _refused(run: AnalysedRun) -> Iterator[Sample]:
    for worker in run.workers:
        kinds = [failure.kind for failure in worker.failures if not failure.survived]
        for kind in ("arena", "persistent", "layer", "memory"):
            yield {**_rank(worker), "kind": kind}, kinds.count(kind)


def _site_labels(worker: Worker, use: WorkerSite) -> Labels:
    return {"site": str(use.key), **_rank(worker), **_slot(use.slot)}


def _sites(size: Callable[[WorkerSite], int]) -> Callable[[AnalysedRun], Iterator[Sample]]:
    def samples(run: AnalysedRun) -> Iterator[Sample]:
        for worker in run.workers:
            for use in worker.sites.values():
                yield _site_labels(worker, use), size(use)

    return samples


def _calls(run: AnalysedRun) -> Iterator[Sample]:
    for worker in run.workers:
        for use in worker.sites.values():
            for phase, calls in use.calls.items():
                yield {**_site_labels(worker, use), "phase": phase}, calls


def _bounds(run: AnalysedRun) -> Iterator[Sample]:
    for site in run.sites:
        if site.bound.bytes is not None:
            labels = {"site": str(site.key), **_slot(site.slot), "grade": site.bound.grade}
            yield labels, site.bound.bytes


def _counts(name: str) -> Callable[[AnalysedRun], Iterator[Sample]]:
    def samples(run: AnalysedRun) -> Iterator[Sample]:
        for worker in run.workers:
            if worker.counts is not None:
                yield _rank(worker), getattr(worker.counts, name)

    return samples


def _memory(name: str) -> Callable[[AnalysedRun], Iterator[Sample]]:
    def samples(run: AnalysedRun) -> Iterator[Sample]:
        for worker in run.workers:
            value = getattr(worker.memory, name)
            if value is not None:
                yield _rank(worker), value

    return samples


def _last_record(run: AnalysedRun) -> Iterator[Sample]:
    for worker in run.workers:
        newest = max((r.ns for r in worker.process.records), default=0)
        header = worker.header
        if newest and header.wall_ns:
            yield _rank(worker), round((header.wall_ns + newest - header.ns) / 1e9, 3)


METRICS: Final[Sequence[Metric]] = (
    Metric("wstrace_run_info", "gauge", "The run and its versions; always 1.", _info),
    Metric("wstrace_verdict", "gauge", "1 for the verdict that holds.", _verdict),
    Metric("wstrace_findings", "gauge", "Findings by code and severity.", _findings),
    Metric("wstrace_locked", "gauge", "1 while the rank's workspace is locked.", _locked),
    Metric(
        "wstrace_arena_warmup_bytes",
        "gauge",
        "Arena of a slot when warm-up ended.",
        _arenas(Worker.arena),
    ),
    Metric(
        "wstrace_arena_bytes",
        "gauge",
        "Arena of a slot at the end of the trace.",
        _arenas(Worker.arena_now),
    ),
    Metric("wstrace_reserve_bytes", "gauge", "Reserve applied in a slot.", _arenas(_reserved)),
    Metric("wstrace_growths_total", "counter", "Arena replacements of a slot.", _growths),
    Metric("wstrace_refused_total", "counter", "Requests that vLLM refused.", _refused),
    Metric(
        "wstrace_site_warmup_bytes",
        "gauge",
        "Largest request of a site before the lock.",
        _sites(lambda use: use.warmup_bytes),
    ),
    Metric(
        "wstrace_site_serving_bytes",
        "gauge",
        "Largest request of a site from the lock on.",
        _sites(lambda use: use.after_bytes),
    ),
    Metric("wstrace_site_bound_bytes", "gauge", "The most a site can need.", _bounds),
    Metric("wstrace_site_requests_total", "counter", "Requests of a site by phase.", _calls),
    Metric("wstrace_steps_total", "counter", "Real steps executed.", _counts("steps_real")),
    Metric(
        "wstrace_step_tokens_max",
        "gauge",
        "Most tokens scheduled in one step.",
        _counts("max_tokens"),
    ),
    Metric(
        "wstrace_step_requests_max",
        "gauge",
        "Most requests scheduled in one step.",
        _counts("max_reqs"),
    ),
    Metric(
        "wstrace_computed_tokens_max",
        "gauge",
        "Most tokens already computed of a scheduled request.",
        _counts("max_computed"),
    ),
    Metric(
        "wstrace_kv_cache_bytes",
        "gauge",
        "KV-cache memory that sizing gave the rank.",
        _memory("available_kv_bytes"),
    ),
    Metric("wstrace_weights_bytes", "gauge", "Weights of the rank.", _memory("weights_bytes")),
    Metric(
        "wstrace_last_record_timestamp_seconds",
        "gauge",
        "Unix time of the rank's newest record.",
        _last_record,
    ),
)
