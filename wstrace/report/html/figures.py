"""The figures' definitions, in plotly. Colours are names of CSS variables: the page replaces
them by the theme's values and draws again when the theme changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from wstrace.report.html.drivers import Dot, DriverChart
from wstrace.report.html.memory import MemoryView
from wstrace.report.html.names import clean, figure_text
from wstrace.report.html.plotting import (
    Figure,
    arena_label,
    base_layout,
    bytes_axis,
    colour,
    horizontal,
    label,
    validated,
    vertical,
)
from wstrace.report.html.sites import MOST_BARS, SiteRow
from wstrace.runs.compare import SiteChange
from wstrace.units import human


def warmup_against_serving(rows: Sequence[SiteRow]) -> Figure:
    """Two bars a site and the bound as a mark; what escaped is named in red."""
    shown = list(reversed(rows[:MOST_BARS]))
    names = [_site_label(row) for row in shown]
    traces: list[Any] = [
        _bars("serving", "serving", names, [r.serving for r in shown], _serving_colours(shown)),
        _bars("warm-up", "warm-up", names, [r.warmup for r in shown], colour("warmup")),
        _ticks("arena", names, [r.arena for r in shown], "arena"),
        _ticks("bound", names, [r.bound for r in shown], "can need (bound)"),
    ]
    return validated(
        traces, _bar_layout([max(r.serving, r.warmup, r.bound or 0) for r in shown])
    )


def _bar_layout(sizes: Sequence[int]) -> Figure:
    """Pairs of lying bars, a place for each of `sizes`."""
    layout = base_layout(height=110 + 54 * len(sizes))
    layout["barmode"] = "group"
    layout["bargap"] = 0.35
    layout["xaxis"] = bytes_axis(sizes)
    layout["yaxis"] = {"automargin": True, "tickfont": {"size": 11}, "fixedrange": True}
    return layout


MARKS: Final = {"escaped": "✕ ", "outgrew": "▲ ", "latent": "△ "}


def _site_label(row: SiteRow) -> str:
    """Unique by its number: a bar chart merges bars whose labels are equal."""
    mark = MARKS.get(row.state, "")
    slot = f" ({row.slot})" if row.slot else ""
    return f"{mark}{row.number} {figure_text(_short_name(row.caller), 30)}{slot}"


def _short_name(caller: str) -> str:
    """The function of `file:line:function`."""
    return caller.rpartition(":")[2] or caller


def _serving_colours(rows: Sequence[SiteRow]) -> list[str]:
    names = {"escaped": "error", "outgrew": "error", "latent": "warn"}
    return [colour(names.get(row.state, "serving")) for row in rows]


def _bars(
    name: str, key: str, labels: Sequence[str], sizes: Sequence[int], fill: str | list[str]
) -> go.Bar:
    return go.Bar(
        name=name,
        orientation="h",
        y=labels,
        x=sizes,
        marker={"color": fill},
        customdata=[f"{key} {human(size)}" for size in sizes],
        hovertemplate="%{y}<br>%{customdata}<extra></extra>",
    )


def _ticks(
    key: str, labels: Sequence[str], sizes: Sequence[int | None], name: str
) -> go.Scatter:
    shape = {"arena": ("line-ns-open", 22, 2), "bound": ("diamond-tall", 11, 1)}[key]
    return go.Scatter(
        name=name,
        y=labels,
        x=sizes,
        mode="markers",
        marker={
            "symbol": shape[0],
            "size": shape[1],
            "color": colour(key),
            "line": {"color": colour(key), "width": shape[2]},
        },
        customdata=[f"{name} {human(size)}" for size in sizes],
        hovertemplate="%{y}<br>%{customdata}<extra></extra>",
    )


def driver(chart: DriverChart) -> Figure:
    """Requests over the driver, the formula's line, the limit and the arena."""
    traces: list[Any] = []
    if chart.line:
        traces.append(
            go.Scatter(
                name="formula",
                x=[x for x, _ in chart.line],
                y=[y for _, y in chart.line],
                mode="lines",
                line={"color": colour("bound"), "width": 1.5},
                customdata=[human(y) for _, y in chart.line],
                hovertemplate="%{x:,}: %{customdata}<extra>formula</extra>",
            )
        )
    traces += _dots(chart.dots)
    sizes = [d.bytes for d in chart.dots] + [y for _, y in chart.line] + [chart.arena]
    layout = base_layout(height=320, y=bytes_axis(sizes))
    layout["xaxis"] = {
        "title": {"text": chart.driver, "standoff": 8},
        "rangemode": "tozero",
        "zeroline": False,
        "gridcolor": colour("line"),
        "tickformat": ",d",
        "tickfont": {"size": 11},
    }
    layout["shapes"] = [horizontal(chart.arena)]
    layout["annotations"] = [arena_label(chart.arena)]
    if chart.limit is not None:
        layout["shapes"].append(vertical(chart.limit, "bound"))
        layout["annotations"].append(label(chart.limit, f"limit {chart.limit:,}"))
        layout["annotations"][-1]["xanchor"] = "right"
    return validated(traces, layout)


def _dots(dots: Sequence[Dot]) -> list[go.Scatter]:
    groups = (("warm-up", False, "warmup"), ("serving", True, "serving"))
    return [
        go.Scatter(
            name=f"asked in {name}",
            x=[d.x for d in dots if d.after is after],
            y=[d.bytes for d in dots if d.after is after],
            mode="markers",
            marker={
                "color": colour(key),
                "size": 8,
                "line": {"color": colour("panel"), "width": 1},
            },
            customdata=[human(d.bytes) for d in dots if d.after is after],
            hovertemplate="%{x:,}: %{customdata}<extra></extra>",
        )
        for name, after, key in groups
        if any(d.after is after for d in dots)
    ]


def memory(view: MemoryView) -> Figure:
    """One stacked bar for now, one for the reserve where it is known."""
    columns = ["now"]
    if any(part.after is not None for part in view.parts):
        columns = ["reserve", "now"]
    traces = []
    for part in [p for p in view.parts if p.now or p.after]:
        sizes = [part.after or 0, part.now] if len(columns) == 2 else [part.now]
        traces.append(
            go.Bar(
                name=part.name,
                orientation="h",
                y=columns,
                x=sizes,
                marker={"color": colour(part.key)},
                customdata=[f"{part.name} {human(size)}" for size in sizes],
                hovertemplate="%{y}<br>%{customdata}<extra></extra>",
            )
        )
    layout = base_layout(height=150 + 40 * len(columns))
    layout["barmode"] = "stack"
    totals = [sum(p.now for p in view.parts), sum(p.after or 0 for p in view.parts)]
    layout["xaxis"] = bytes_axis([*totals, view.total or 0])
    layout["yaxis"] = {"automargin": True, "fixedrange": True}
    if view.total:
        layout["shapes"] = [vertical(view.total)]
        layout["annotations"] = [label(view.total, f"device {human(view.total)}")]
        layout["annotations"][0]["xanchor"] = "right"
    return validated(traces, layout)


def comparison(changes: Sequence[SiteChange]) -> Figure:
    """Two bars a site: run A and run B."""
    shown = list(reversed(changes[:MOST_BARS]))
    names = [
        f"{len(shown) - i} {figure_text(_short_name(_caller(change)), 30)}"
        for i, change in enumerate(shown)
    ]
    traces: list[Any] = [
        _bars("run B", "run B", names, [c.bytes_b for c in shown], colour("serving")),
        _bars("run A", "run A", names, [c.bytes_a for c in shown], colour("warmup")),
    ]
    return validated(traces, _bar_layout([max(c.bytes_a, c.bytes_b) for c in shown]))


def _caller(change: SiteChange) -> str:
    seen = change.b or change.a
    return clean((seen.caller if seen else "") or str(change.key))
