"""Prometheus metrics of a run: a text for node_exporter's textfile collector, and what
`wstrace watch --metrics` serves.

`METRICS` is the whole list: docs/dashboards.md, dashboards/grafana/wstrace.json and
dashboards/prometheus/rules.yml use no other name, and tests hold them to it. Names, types and
escaping are prometheus_client's, which vLLM needs as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.recorder.state.guard_file import GROWTHS, HELP, LARGEST, NEAR
from wstrace.runs.worker import Worker, WorkerSite
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import Growth, Slot

Labels = dict[str, str]
Sample = tuple[Labels, float]
LONGEST_LABEL: Final = 200
MOST_SAMPLES: Final = 2_000
"""Samples of one metric: a server of eight ranks with a dozen sites has a hundred."""


@dataclass(frozen=True)
class Metric:
    """One metric family: its name, kind, help text, and what gives its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Callable[[AnalysedRun], Iterable[Sample]]


def render_prometheus(run: AnalysedRun) -> str:
    """All metrics of a run in Prometheus's text form; a family without a sample is left out."""
    registry = CollectorRegistry()
    registry.register(Families(families(run)))
    return str(generate_latest(registry).decode())


class Families(Collector):
    """Metric families that were made before: a scrape reads them and makes nothing."""

    def __init__(self, made: Iterable[Family] = ()) -> None:
        self.made = tuple(made)

    def collect(self) -> Iterable[Family]:
        """What the library asks for at each scrape."""
        return self.made


def families(run: AnalysedRun) -> list[Family]:
    """The metrics of a run that have a sample, as prometheus_client's families."""
    found = [_family(metric, run) for metric in METRICS]
    return [family for family in found if family.samples]


def _family(metric: Metric, run: AnalysedRun) -> Family:
    # The library takes a counter's name without the `_total` that it then adds.
    family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
    for number, (labels, value) in enumerate(metric.samples(run)):
        if number < MOST_SAMPLES:
            clean = {key: _clean(text) for key, text in labels.items()}
            family.add_sample(metric.name, clean, float(value))
    return family


def _clean(text: str) -> str:
    """A label without a secret, at most LONGEST_LABEL characters and a hash."""
    clean = redact_text(text[:4096])
    if max(len(text), len(clean)) > LONGEST_LABEL:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
        clean = f"{clean[:LONGEST_LABEL]}…{digest}"
    return clean.encode("utf-8", "replace").decode()


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


def _headroom(run: AnalysedRun) -> Iterator[Sample]:
    """Over the ranks that have the slot, the smallest arena decides."""
    for site in run.sites:
        arenas = [w.arena_now(site.slot) for w in run.workers if site.slot in w.slots()]
        if site.bound.bytes is not None and arenas:
            labels = {"site": str(site.key), **_slot(site.slot), "grade": site.bound.grade}
            yield labels, min(arenas) - site.bound.bytes


def _escapes(run: AnalysedRun) -> Iterator[Sample]:
    for worker in run.workers:
        for use in worker.sites.values():
            escaped = sum(seen.times for seen in use.seen if seen.outcome == "escaped")
            yield _site_labels(worker, use), escaped


def _met(run: AnalysedRun) -> Iterator[tuple[Labels, Growth]]:
    """The growths that the lock would have refused, by the site that asked."""
    for worker in run.workers:
        for growth in worker.growths:
            if growth.forced and growth.site is not None:
                where = worker.where(growth.site)
                site = f"{where['file']}:{where['function']}"
                yield {"site": site, **_rank(worker), **_slot(growth.slot)}, growth


def _guard_growths(run: AnalysedRun) -> Iterator[Sample]:
    counted: dict[tuple[tuple[str, str], ...], int] = {}
    for labels, _ in _met(run):
        key = tuple(labels.items())
        counted[key] = counted.get(key, 0) + 1
    for key, count in counted.items():
        yield dict(key), count


def _guard_bytes(run: AnalysedRun) -> Iterator[Sample]:
    largest: dict[tuple[tuple[str, str], ...], int] = {}
    for labels, growth in _met(run):
        key = tuple(labels.items())
        largest[key] = max(growth.after, largest.get(key, 0))
    for key, size in largest.items():
        yield dict(key), size


def _near(run: AnalysedRun) -> Iterator[Sample]:
    for worker in run.workers:
        for near in worker.near:
            yield {"site": near.site, **_rank(worker)}, near.bytes


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
        newest = worker.process.totals.newest
        header = worker.header
        if newest and header.wall_ns:
            yield _rank(worker), round((newest + header.wall_offset) / 1e9, 3)


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
    Metric(
        "wstrace_site_headroom_bytes",
        "gauge",
        "Smallest arena of the site's slot less its bound; below 0 it can outgrow it.",
        _headroom,
    ),
    Metric("wstrace_escapes_total", "counter", "Recorded requests above the lock.", _escapes),
    Metric(GROWTHS, "counter", HELP[GROWTHS][1], _guard_growths),
    Metric(LARGEST, "gauge", HELP[LARGEST][1], _guard_bytes),
    Metric(NEAR, "gauge", HELP[NEAR][1], _near),
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
