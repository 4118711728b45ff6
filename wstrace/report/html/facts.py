"""What ran: versions, command, limits, phases, and what the reader has to say."""

from __future__ import annotations

from dataclasses import dataclass

from wstrace.report.html.names import clean, clean_argv
from wstrace.runs.run import Session
from wstrace.runs.worker import RankView

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


def run_facts(session: Session) -> RunFacts:
    """The facts of a run, from run.json and the first worker."""
    view = session.ranks[0] if session.ranks else None
    return RunFacts(
        title=_title(session, view),
        run=tuple(_run(session, view)),
        limits=tuple(_limits(view)) if view else (),
        phases=tuple(_phases(view)) if view else (),
        hooks=tuple((h.name, clean(h.why)) for h in view.hooks.values() if not h.set)
        if view
        else (),
        notes=tuple(clean(note, 400) for note in _notes(session)),
    )


def _title(session: Session, view: RankView | None) -> str:
    model = clean(str(view.limits.get("model") or "")) if view else ""
    version = f"vLLM {view.header.vllm}" if view and view.header.vllm else ""
    return " · ".join(part for part in (model, version) if part) or clean(session.trace.run)


def _run(session: Session, view: RankView | None) -> list[Pair]:
    meta = session.trace.meta
    pairs = [("run", clean(session.trace.run))]
    if meta is not None:
        ended = f"{meta.ended}, exit code {meta.exit_code}" if meta.ended else "not recorded"
        pairs += [("command", clean_argv(meta.command)), ("started", clean(meta.started))]
        pairs += [("ended", clean(ended))]
    if view is not None:
        pairs += _of_worker(view)
        if meta is None and view.header.argv:
            pairs.append(("command", clean_argv(view.header.argv)))
    processes = session.trace.processes
    pairs.append(("processes", f"{len(processes)}, {len(session.ranks)} of them workers"))
    records = sum(len(p.records) for p in processes)
    pairs.append(("records", f"{records:,}"))
    return [(name, value) for name, value in pairs if value]


def _of_worker(view: RankView) -> list[Pair]:
    header = view.header
    return [
        ("vLLM", clean(header.vllm or "")),
        ("torch", clean(header.torch or "")),
        ("Python", clean(header.python)),
        ("wstrace", clean(header.wstrace)),
        ("model runner", clean(view.worker.runner)),
        ("host", clean(header.host)),
        ("on growth", clean(header.on_growth)),
        ("reserve", clean(header.reserve or "none")),
    ]


def _limits(view: RankView) -> list[Pair]:
    return [(clean(name), _limit(value)) for name, value in view.limits.items()]


def _limit(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return clean(", ".join(str(item) for item in value) or "none", 200)
    return clean(str(value))


def _phases(view: RankView) -> list[tuple[str, str, str]]:
    """(phase, seconds from the start, step) of the first 40 changes."""
    start = view.process.header.ns
    return [
        (change.phase, f"{max(0, change.ns - start) / 1e9:,.2f}", f"{change.step:,}")
        for change in view.phases[:40]
    ]


def _notes(session: Session) -> list[str]:
    cut = [f"{p.path.name}: its last record was cut" for p in session.trace.processes if p.cut]
    own = [note.text for view in session.ranks for note in view.notes]
    return list(dict.fromkeys([*session.notes, *cut, *own]))[:40]
