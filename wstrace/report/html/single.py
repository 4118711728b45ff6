"""The report of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.html.charts import charts, drawn
from wstrace.report.html.facts import run_facts
from wstrace.report.html.findings import cards
from wstrace.report.html.fix import fix
from wstrace.report.html.page import build
from wstrace.report.html.planned import planned
from wstrace.report.html.ranks import rank_grid
from wstrace.report.html.sites import MOST_BARS, origins
from wstrace.report.html.verdict_view import verdict_view


def render_single(run: AnalysedRun) -> str:
    """The whole page as text."""
    config, can_fail = planned(run)
    found = charts(run, config)
    findings, findings_left = cards(run, found.rows)
    context: Mapping[str, Any] = {
        "verdict": verdict_view(run),
        "fix": fix(run, config, can_fail),
        "cards": findings,
        "cards_left": findings_left,
        "lines": found.lines,
        "slots_left": found.slots_left,
        "rows": found.rows,
        "rows_left": found.rows_left,
        "bars_left": max(0, len(found.rows) + found.rows_left - MOST_BARS),
        "charts": found.drivers,
        "memory": found.memory,
        "grid": rank_grid(run),
        "origins": origins(found.rows),
        "facts": run_facts(run),
    }
    return build("report.html.j2", context, drawn(found))
