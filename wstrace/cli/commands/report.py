"""`wstrace report TRACE [TRACE]`, or a log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wstrace.errors import WstraceError

TRACES = Annotated[
    list[Path], typer.Argument(help="Trace folder (two: old and new, html only), or a log.")
]
FORMAT = Annotated[str | None, typer.Option("--format", help="text, json, markdown or html.")]
OUT = Annotated[
    Path | None, typer.Option("-o", "--output", help="File; its extension decides.")
]
RUN = Annotated[str | None, typer.Option("--run", help="Which run of the folder.")]


def command(traces: TRACES, fmt: FORMAT = None, output: OUT = None, run: RUN = None) -> None:
    """What layers asked in warm-up and in serving; what escaped.

    Example: wstrace report wstrace-20260516T101500Z-1a2b3c4d -o report.html
    """
    from wstrace.cli import outlet
    from wstrace.cli.reading import read_runs
    from wstrace.report.choose import format_of, reporter

    name = format_of(output, fmt)
    if len(traces) > (2 if name == "html" else 1):
        raise WstraceError(
            f"A {name} report takes {'two traces' if name == 'html' else 'one trace'} at most.",
            "Compare two runs with `wstrace diff A B` or `wstrace report A B -o report.html`.",
        )
    runs = read_runs(traces, run, logs=True, whole=name == "html")
    if name == "text" and output is None and sys.stdout.isatty():
        _on_terminal(runs[0])
        return
    outlet.write(reporter(name)(runs), output)


def _on_terminal(run: object) -> None:
    from wstrace.findings.analysed_run import AnalysedRun
    from wstrace.report.console import plain_console
    from wstrace.report.text import render

    assert isinstance(run, AnalysedRun)
    render(run, plain_console(soft_wrap=False))
