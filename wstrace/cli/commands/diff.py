"""`wstrace diff TRACE [TRACE]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wstrace.cli.outlet import Format

TRACES = Annotated[
    list[Path], typer.Argument(help="One trace: warm-up against serving. Two: run A against B.")
]
FORMAT = Annotated[Format, typer.Option("--format", help="text or json.")]


def command(traces: TRACES, fmt: FORMAT = "text") -> None:
    """Warm-up against serving of one run, or two runs, by site.

    Example: wstrace diff before-upgrade/ after-upgrade/
    """
    from wstrace.cli import outlet
    from wstrace.cli.reading import read_runs
    from wstrace.errors import WstraceError
    from wstrace.report import diff

    if len(traces) > 2:
        raise WstraceError("Too many traces.", "Give one run, or two to compare.")
    runs = read_runs(traces)
    for note in (note for run in runs for note in run.trace.notes):
        outlet.say(f"wstrace: {note}")
    rows = diff.phase_rows(runs[0]) if len(runs) == 1 else diff.run_rows(runs[0], runs[1])
    if fmt == "json":
        sys.stdout.write(diff.as_json(rows, runs))
    else:
        diff.print_rows(rows, runs)
