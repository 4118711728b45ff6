"""Which traces belong together: folders of several hosts are one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wstrace.errors import one_line
from wstrace.findings.analysed_run import AnalysedRun, analyse
from wstrace.trace.reader import Progress, Trace, kept_once, load_trace, runs_in
from wstrace.trace.run_file import distinct, together
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
            key = trace.run if trace.processes or trace.commands else (number, trace.run)
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


def one_trace(traces: list[Trace]) -> Trace:
    """One trace of all the processes of some of one run, each once.

    Raises WstraceError where a file has gone since it was read.
    """
    first = next((trace for trace in traces if trace.processes), traces[0])
    commands = distinct(meta for trace in traces for meta in trace.commands)
    processes = {str(p.path.resolve()): p for trace in traces for p in trace.processes}
    once = kept_once([(Path(file), p.header) for file, p in processes.items()])
    return Trace(
        path=first.path,
        run=first.run,
        processes=[processes[file.path] for file in once.files],
        meta=together(commands),
        notes=list(dict.fromkeys([*(n for t in traces for n in t.notes), *once.words])),
        doubts=list(dict.fromkeys([*(d for t in traces for d in t.doubts), *once.doubts])),
        unread=sum(trace.unread for trace in traces),
        among_others=any(trace.among_others for trace in traces),
        commands=commands,
    )
