"""Which traces belong together: folders of several hosts of one run are one session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wstrace.runs.run import Run, analyse
from wstrace.trace.reader import Progress, Trace, load


def load_runs(
    paths: Sequence[Path],
    run: str | None = None,
    *,
    allow_unlocked: bool = False,
    progress: Progress | None = None,
) -> list[Run]:
    """The sessions of some trace folders or files, one a run, in the order given.

    Raises WstraceError (exit 2) as `wstrace.trace.reader.load` does.
    """
    grouped: dict[object, list[Trace]] = {}
    for number, path in enumerate(paths):
        trace = load(path, run, progress)
        grouped.setdefault(trace.run if trace.processes else number, []).append(trace)
    return [
        analyse(_joined(traces), allow_unlocked=allow_unlocked) for traces in grouped.values()
    ]


def _joined(traces: list[Trace]) -> Trace:
    """One trace of all the processes; a file that was given twice counts once."""
    first = traces[0]
    processes = {p.path.resolve(): p for trace in traces for p in trace.processes}
    return Trace(
        path=first.path,
        run=first.run,
        processes=list(processes.values()),
        meta=next((t.meta for t in traces if t.meta is not None), None),
        notes=list(dict.fromkeys(note for t in traces for note in t.notes)),
        doubts=list(dict.fromkeys(doubt for t in traces for doubt in t.doubts)),
    )
