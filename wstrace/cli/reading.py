"""Reading traces for a command, with a progress bar for long reads on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wstrace.cli.outlet import say
from wstrace.errors import with_stop
from wstrace.file_names import SUFFIX
from wstrace.triage.log_run import is_log, log_run

if TYPE_CHECKING:
    from wstrace.findings.analysed_run import AnalysedRun

WORTH_A_BAR = 20 << 20


def read_runs(
    paths: Sequence[Path],
    run: str | None = None,
    *,
    allow_unlocked: bool = False,
    logs: bool = False,
    whole: bool = False,
) -> list[AnalysedRun]:
    """The analysed traces; with `logs`, files of text too, each a run of its own.

    `whole`: for what lists each request (`AnalysedRun.whole`), which is then read once.

    Raises WstraceError (exit 2) for what cannot be read.
    """
    from wstrace.runs.run import refuse_no_trace

    if logs and any(map(is_log, paths)):
        return [
            log_run(path, run) if is_log(path) else read_runs([path], run, whole=whole)[0]
            for path in paths
        ]
    analysed = _read(paths, run, allow_unlocked, whole)
    for one in analysed:
        refuse_no_trace(one.trace)
        for doubt in one.trace.doubts:
            say(f"wstrace: {with_stop(doubt)}")
    return analysed


def _read(
    paths: Sequence[Path], run: str | None, allow_unlocked: bool, whole: bool
) -> list[AnalysedRun]:
    from wstrace.findings.analysed_run import load_run

    total = sum(_size(path) for path in paths)
    if total < WORTH_A_BAR or not sys.stderr.isatty():
        return [load_run(p, run, allow_unlocked=allow_unlocked, whole=whole) for p in paths]
    from rich.progress import Progress

    from wstrace.report.console import plain_console

    with Progress(console=plain_console(stderr=True), transient=True) as progress:
        task = progress.add_task("Reading", total=total)
        return [
            load_run(
                p,
                run,
                allow_unlocked=allow_unlocked,
                progress=lambda size: progress.advance(task, size),
                whole=whole,
            )
            for p in paths
        ]


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(f.stat().st_size for f in path.glob(f"*{SUFFIX}")) if path.is_dir() else 0
