"""`wstrace export TRACE`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from wstrace.findings.analysed_run import AnalysedRun

TRACE = Annotated[Path, typer.Argument(help="Trace folder or file.")]
FORMAT = Annotated[
    Literal["prometheus", "perfetto", "parquet", "csv"],
    typer.Option(
        "--format",
        help="prometheus: for the textfile collector. perfetto: a Chrome trace. "
        "csv, parquet: one row a request.",
    ),
]
OUT = Annotated[
    Path | None, typer.Option("-o", "--output", help="File, written whole or not at all.")
]
RUN = Annotated[str | None, typer.Option("--run", help="Which run of the folder.")]
TORCH = Annotated[
    Path | None,
    typer.Option("--torch-trace", help="perfetto: use the clock base of this torch trace."),
]


def command(
    trace: TRACE,
    fmt: FORMAT,
    output: OUT = None,
    run: RUN = None,
    torch_trace: TORCH = None,
) -> None:
    """A run for other tools: Prometheus, Perfetto, CSV, Parquet.

    Example: wstrace export wstrace-20260516T101500Z-1a2b3c4d --format perfetto -o perfetto.json
    """
    from wstrace.cli import outlet
    from wstrace.cli.reading import read_runs
    from wstrace.report.verdict import sentence

    if torch_trace is not None and fmt != "perfetto":
        raise WstraceError("--torch-trace goes with --format perfetto.", "Leave one out.")
    if run is None:
        _refuse_several(trace)
    analysed = read_runs([trace], run, whole=fmt != "prometheus")[0]
    if fmt == "parquet":
        _write_bytes(analysed, output)
    else:
        outlet.write(_text(fmt, torch_trace)(analysed), output)
    outlet.say(f"wstrace: {sentence(analysed)}")  # a table has no room for it


def _refuse_several(trace: Path) -> None:
    """The newest run must not stand in for another one: an export does not say which it is."""
    from wstrace.trace.reader import runs_in

    runs = runs_in(trace)
    if len(runs) > 1:
        raise WstraceError(
            f"{trace} holds {len(runs)} runs.", f"Name one with --run: {', '.join(runs)}."
        )


def _text(fmt: str, torch_trace: Path | None) -> Callable[[AnalysedRun], str]:
    if fmt == "prometheus":
        from wstrace.report.export.prometheus import render_prometheus

        return render_prometheus
    if fmt == "csv":
        from wstrace.report.export.table_export import render_csv

        return render_csv
    from wstrace.report.export.perfetto import render_perfetto, torch_base

    base = torch_base(torch_trace) if torch_trace is not None else None
    return lambda analysed: render_perfetto(analysed, base)


def _write_bytes(analysed: AnalysedRun, output: Path | None) -> None:
    from wstrace.report.export.table_export import render_parquet

    if output is None:
        raise WstraceError("Parquet is not text.", "Give a file: -o requests.parquet.")
    from wstrace.cli import outlet

    outlet.write(render_parquet(analysed), output)
