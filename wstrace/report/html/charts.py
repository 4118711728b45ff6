"""What a run's figures show, and the figures by name: the page's, and a notebook's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.html import figures
from wstrace.report.html.drivers import DriverChart, driver_charts
from wstrace.report.html.memory import MemoryView, memory_view
from wstrace.report.html.plotting import Figure
from wstrace.report.html.sites import SiteRow, site_rows
from wstrace.report.html.timeline import Timeline, timelines
from wstrace.reserve.schema import ReserveConfig


@dataclass(frozen=True)
class Charts:
    """The data of a run's figures, and how many rows and slots were left out."""

    rows: Sequence[SiteRow]
    rows_left: int
    lines: Sequence[Timeline]
    slots_left: int
    drivers: Sequence[DriverChart]
    memory: MemoryView | None


def charts(run: AnalysedRun, config: ReserveConfig | None) -> Charts:
    """What can be drawn of `run`; `config` is the reserve that its memory is shown with."""
    rows, rows_left = site_rows(run)
    lines, slots_left = timelines(run)
    memory = memory_view(run.workers, config)
    return Charts(rows, rows_left, lines, slots_left, driver_charts(rows), memory)


def drawn(found: Charts) -> dict[str, Figure]:
    """The figures by name, which is also the id of the page's element: `sites`, `memory`,
    `timeline-0`, `driver-0` and so on, as far as there is something to draw."""
    specs = {f"timeline-{i}": figures.timeline(line) for i, line in enumerate(found.lines)}
    if found.rows:
        specs["sites"] = figures.warmup_against_serving(found.rows)
    specs |= {f"driver-{i}": figures.driver(each) for i, each in enumerate(found.drivers)}
    if found.memory is not None:
        specs["memory"] = figures.memory(found.memory)
    return specs
