"""Which traces belong together: folders of several hosts are one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wstrace.errors import one_line
from wstrace.findings.analysed_run import AnalysedRun, analyse
from wstrace.findings.ends import ended, failed
from wstrace.trace.reader import Progress, Trace, kept_once, load_trace, runs_in
from wstrace.trace.run_file import RunFile
from wstrace.trace.unread import is_other_folder, no_trace
from wstrace.triage.log_run import is_log, log_run


def load_runs(
    paths: Sequence[Path],
    run: str | None = None,
    *,
    allow_unlocked: bool = False,
    progress: Progress | None = None,
) -> list[AnalysedRun]:
    """The runs of some trace folders or files, each once, and one for each log.

    All the runs of a folder, unless `run` names one. Raises WstraceError (exit 2) as
    `wstrace.trace.reader.load_trace` does.
    """
    grouped: dict[object, list[Trace]] = {}
    logs = [path for path in paths if is_log(path)]
    for number, path in enumerate(path for path in paths if path not in logs):
        for trace in _traces_of(path, run, progress):
            key = trace.run if trace.processes else (number, trace.run)
            grouped.setdefault(key, []).append(trace)
    runs = [analyse(one_trace(t), allow_unlocked=allow_unlocked) for t in grouped.values()]
    return [*runs, *(log_run(path, run) for path in dict.fromkeys(logs))]


def _traces_of(path: Path, run: str | None, progress: Progress | None) -> list[Trace]:
    """Each run of a folder on its own: the newest may be clean, and one before it not.

    Raises WstraceError for a folder of other things: an empty one may be a run's.
    """
    if path.is_dir() and is_other_folder(path):
        raise no_trace(path)
    several = runs_in(path) if run is None else []
    if len(several) < 2:
        return [load_trace(path, run, progress)]
    note = f"{len(several)} runs in {one_line(str(path))}, each is judged; --run ID picks one"
    traces = [load_trace(path, one, progress) for one in several]
    traces[0].notes.insert(0, note)
    return traces


def _worst_end(traces: Sequence[Trace]) -> RunFile | None:
    """The run.json of the host whose command ended worst: it must not hide behind another's."""
    known = [trace for trace in traces if trace.meta is not None]
    return min(known, key=_how_well).meta if known else None


def _how_well(trace: Trace) -> tuple[bool, bool]:
    """How a run ended, the worst first: a failure, no end, an end in order."""
    return failed(trace) is None, trace.meta is not None and ended(trace.meta)


def ends_worse(one: RunFile | None, other: RunFile | None) -> bool:
    """Whether the first of two ends of a run is the worse one; an end is worse than none."""
    if one is None or other is None:
        return one is not None
    first, second = (Trace(Path(), meta.run, [], meta) for meta in (one, other))
    return _how_well(first) < _how_well(second)


def one_trace(traces: list[Trace]) -> Trace:
    """One trace of all the processes of some of one run, each once.

    Raises WstraceError where a file has gone since it was read.
    """
    first = traces[0]
    processes = {str(p.path.resolve()): p for trace in traces for p in trace.processes}
    once = kept_once([(Path(file), p.header) for file, p in processes.items()])
    return Trace(
        path=first.path,
        run=first.run,
        processes=[processes[file.path] for file in once.files],
        meta=_worst_end(traces),
        notes=list(dict.fromkeys([*(n for t in traces for n in t.notes), *once.words])),
        doubts=list(dict.fromkeys([*(d for t in traces for d in t.doubts), *once.doubts])),
        unread=sum(trace.unread for trace in traces),
        among_others=any(trace.among_others for trace in traces),
    )
