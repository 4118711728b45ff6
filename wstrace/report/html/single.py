"""The report of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wstrace.report.html import figures
from wstrace.report.html.drivers import DriverChart, driver_charts
from wstrace.report.html.facts import run_facts
from wstrace.report.html.findings import cards
from wstrace.report.html.fix import fix
from wstrace.report.html.memory import MemoryView, memory_view
from wstrace.report.html.page import build
from wstrace.report.html.planned import planned
from wstrace.report.html.ranks import rank_grid
from wstrace.report.html.sites import MOST_BARS, SiteRow, origins, site_rows
from wstrace.report.html.timeline import Timeline, timelines
from wstrace.report.html.timeline_figure import timeline
from wstrace.report.html.verdict_view import verdict_view
from wstrace.runs.run import Run


def render_single(run: Run) -> str:
    """The whole page as text."""
    config, can_fail = planned(run)
    rows, rows_left = site_rows(run)
    lines, slots_left = timelines(run)
    charts = driver_charts(rows)
    memory = memory_view(run.workers, config)
    findings, findings_left = cards(run, rows)
    context: Mapping[str, Any] = {
        "verdict": verdict_view(run),
        "fix": fix(run, config, can_fail),
        "cards": findings,
        "cards_left": findings_left,
        "lines": lines,
        "slots_left": slots_left,
        "rows": rows,
        "rows_left": rows_left,
        "bars_left": max(0, len(rows) + rows_left - MOST_BARS),
        "charts": charts,
        "memory": memory,
        "grid": rank_grid(run),
        "origins": origins(rows),
        "facts": run_facts(run),
    }
    return build("report.html.j2", context, _figures(lines, rows, charts, memory))


def _figures(
    lines: Sequence[Timeline],
    rows: Sequence[SiteRow],
    charts: Sequence[DriverChart],
    memory: MemoryView | None,
) -> dict[str, Any]:
    """Specs by the id of the element that each is drawn in."""
    specs = {f"timeline-{i}": timeline(line) for i, line in enumerate(lines)}
    if rows:
        specs["sites"] = figures.warmup_against_serving(rows)
    specs |= {f"driver-{i}": figures.driver(chart) for i, chart in enumerate(charts)}
    if memory is not None:
        specs["memory"] = figures.memory(memory)
    return specs
