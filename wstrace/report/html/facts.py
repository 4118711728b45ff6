"""What ran: versions, command, limits, phases, and what the reader has to say."""

from __future__ import annotations

from dataclasses import dataclass

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.html.names import clean, clean_argv
from wstrace.runs.worker import Worker
from wstrace.triage.log_run import LogRun
from wstrace.triage.redaction import redact_value

Pair = tuple[str, str]


@dataclass(frozen=True)
class RunFacts:
    """Label and value pairs, ready to show; nothing in them is secret."""

    title: str
    run: tuple[Pair, ...]
    limits: tuple[Pair, ...]
    phases: tuple[tuple[str, str, str], ...]
    hooks: tuple[Pair, ...]
    notes: tuple[str, ...]


def run_facts(run: AnalysedRun) -> RunFacts:
    """The facts of a run, from run.json and the first worker."""
    if isinstance(run, LogRun):
        return _of_log(run)
    worker = run.workers[0] if run.workers else None
    return RunFacts(
        title=_title(run, worker),
        run=tuple(_run(run, worker)),
        limits=tuple(_limits(worker)) if worker else (),
        phases=tuple(_phases(worker)) if worker else (),
        hooks=tuple((h.name, clean(h.why)) for h in worker.hooks.values() if not h.set)
        if worker
        else (),
        notes=tuple(clean(note, 400) for note in _notes(run)),
    )


def _of_log(run: LogRun) -> RunFacts:
    """What the text shows of its engine."""
    name = clean(run.trace.run)
    pairs = [("log", name), ("vLLM", clean(run.vllm_version or ""))]
    config = redact_value(run.report.config)
    return RunFacts(
        title=name,
        run=tuple(pair for pair in pairs if pair[1]),
        limits=tuple((clean(n), _limit(v)) for n, v in config.items()),
        phases=(),
        hooks=(),
        notes=tuple(clean(note, 400) for note in run.notes),
    )


def _title(run: AnalysedRun, worker: Worker | None) -> str:
    model = clean(str(worker.limits.get("model") or "")) if worker else ""
    version = f"vLLM {worker.header.vllm}" if worker and worker.header.vllm else ""
    return " · ".join(part for part in (model, version) if part) or clean(run.trace.run)


def _run(run: AnalysedRun, worker: Worker | None) -> list[Pair]:
    meta = run.trace.meta
    pairs = [("run", clean(run.trace.run))]
    if meta is not None:
        ended = f"{meta.ended}, exit code {meta.exit_code}" if meta.ended else "not recorded"
        pairs += [("command", clean_argv(meta.command)), ("started", clean(meta.started))]
        pairs += [("ended", clean(ended))]
    if worker is not None:
        pairs += _of_worker(worker)
        if meta is None and worker.header.argv:
            pairs.append(("command", clean_argv(worker.header.argv)))
    processes = run.trace.processes
    pairs.append(("processes", f"{len(processes)}, {len(run.workers)} of them workers"))
    records = sum(p.totals.records for p in processes)
    pairs.append(("records", f"{records:,}"))
    return [(name, value) for name, value in pairs if value]


def _of_worker(worker: Worker) -> list[Pair]:
    header = worker.header
    return [
        ("vLLM", clean(header.vllm or "")),
        ("torch", clean(header.torch or "")),
        ("Python", clean(header.python)),
        ("wstrace", clean(header.wstrace)),
        ("model runner", clean(worker.init.runner)),
        ("host", clean(header.host)),
        ("on growth", clean(header.on_growth)),
        ("reserve", clean(header.reserve or "none")),
    ]


def _limits(worker: Worker) -> list[Pair]:
    return [(clean(name), _limit(value)) for name, value in worker.limits.items()]


def _limit(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return clean(", ".join(str(item) for item in value) or "none", 200)
    return clean(str(value))


def _phases(worker: Worker) -> list[tuple[str, str, str]]:
    """(phase, seconds from the start, step) of the first 40 changes."""
    start = worker.process.header.ns
    return [
        (change.phase, f"{max(0, change.ns - start) / 1e9:,.2f}", f"{change.step:,}")
        for change in worker.phases[:40]
    ]


def _notes(run: AnalysedRun) -> list[str]:
    cut = [f"{p.path.name}: its last record was cut" for p in run.trace.processes if p.cut]
    rests = [f"rests on: {line}" for line in run.rests_on.shown()]
    return list(dict.fromkeys([*run.notes, *cut, *rests]))[:40]
