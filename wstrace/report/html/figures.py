"""All figures of the reports, in plotly: the HTML page and `wstrace.load(...).figure(NAME)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from wstrace.report.finding_text import asked_text
from wstrace.report.html.drivers import Dot, DriverChart
from wstrace.report.html.memory import MemoryView
from wstrace.report.html.names import clean, figure_text
from wstrace.report.html.plotting import (
    Figure,
    base_layout,
    bytes_axis,
    colour,
    label,
    validated,
    vertical,
)
from wstrace.report.html.sites import MOST_BARS, SiteRow
from wstrace.report.html.timeline import Kind, Point, Timeline
from wstrace.runs.compare import SiteChange
from wstrace.trace.site_key import SiteKey
from wstrace.units import human

DEVICE_SHARE: Final = 0.5  # a bar shorter than this part of the device is drawn without it

_POINTS: Final[dict[Kind, tuple[str, str, int]]] = {
    "warm-up": ("warmup", "circle", 7),
    "serving": ("serving", "circle", 7),
    "growth": ("arena", "triangle-up", 9),
    "reserve": ("bound", "star", 11),
    "escape": ("error", "diamond", 10),
    "refused": ("error", "x", 11),
}
_NAMES: Final[dict[Kind, str]] = {
    "warm-up": "asked in warm-up",
    "serving": "asked in serving",
    "growth": "arena replaced",
    "reserve": "reserve applied",
    "escape": "escaped the lock",
    "refused": "refused",
}


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
    return SiteKey.called(caller).function or caller


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
        customdata=[f"{key} {asked_text(size, 'nothing')}" for size in sizes],
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
    traces.append(_arena_line(chart))
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
    if chart.limit is not None:
        layout["shapes"] = [vertical(chart.limit, "bound")]
        layout["annotations"] = [label(chart.limit, f"limit {chart.limit:,}")]
        layout["annotations"][0]["xanchor"] = "right"
    return validated(traces, layout)


def _arena_line(chart: DriverChart) -> go.Scatter:
    """The arena over the whole width, named in the legend: a label here is overprinted."""
    ends = [0, max([chart.limit or 0, *(dot.x for dot in chart.dots)])]
    return go.Scatter(
        name=f"arena {human(chart.arena)}",
        x=ends,
        y=[chart.arena, chart.arena],
        mode="lines",
        line={"color": colour("arena"), "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )


def _dots(dots: Sequence[Dot]) -> list[go.Scatter]:
    groups = (("warm-up", False, "warmup"), ("serving", True, "serving"))
    return [
        go.Scatter(
            name=f"asked in {name}",
            cliponaxis=False,
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
                name=part.name.partition(":")[0],  # its reason stands in the table
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
    shown = view.total if view.total and max(totals) >= view.total * DEVICE_SHARE else 0
    layout["xaxis"] = bytes_axis([*totals, shown])
    layout["yaxis"] = {"automargin": True, "fixedrange": True}
    if view.total and shown:
        layout["shapes"] = [vertical(view.total)]
        layout["annotations"] = [label(view.total, f"device {human(view.total)}")]
        layout["annotations"][0]["xanchor"] = "right"
    return validated(traces, layout)


def comparison(changes: Sequence[SiteChange]) -> Figure:
    """Two bars a site: run A and run B."""
    shown = list(reversed(changes[:MOST_BARS]))
    names = [
        f"{len(shown) - i} {figure_text(_short_name(clean(change.named)), 30)}"
        for i, change in enumerate(shown)
    ]
    traces: list[Any] = [
        _bars("run B", "run B", names, [c.bytes_b for c in shown], colour("serving")),
        _bars("run A", "run A", names, [c.bytes_a for c in shown], colour("warmup")),
    ]
    return validated(traces, _bar_layout([max(c.bytes_a, c.bytes_b) for c in shown]))


def timeline(line: Timeline) -> Figure:
    """Arena as a staircase, requests as points, phases as bands, locks as lines."""
    traces: list[Any] = [_staircase(line.arena)]
    for kind, points in line.points.items():
        if points:
            traces.append(_scatter(kind, points))
    layout = base_layout(height=340, y=bytes_axis(_sizes(line)))
    layout["xaxis"] = _band_axis(line)
    layout["shapes"] = [*_band_shapes(line), *(vertical(m.x) for m in line.marks)]
    layout["annotations"] = [label(m.x, m.text, i) for i, m in enumerate(line.marks)]
    return validated(traces, layout)


def _sizes(line: Timeline) -> list[int]:
    return [p.bytes for points in line.points.values() for p in points]


def _staircase(points: Sequence[Point]) -> go.Scatter:
    return go.Scatter(
        x=[p.x for p in points],
        y=[p.bytes for p in points],
        customdata=[p.text for p in points],
        name="arena",
        mode="lines",
        line={"shape": "hv", "color": colour("arena"), "width": 2},
        fill="tozeroy",
        fillcolor=colour("arena-soft"),
        hoverinfo="skip",
    )


def _scatter(kind: Kind, points: Sequence[Point]) -> go.Scatter:
    name, symbol, size = _POINTS[kind]
    return go.Scatter(
        x=[p.x for p in points],
        y=[p.bytes for p in points],
        customdata=[p.text for p in points],
        name=_NAMES[kind],
        mode="markers",
        cliponaxis=False,  # a small request lies on the axis
        marker={
            "color": colour(name),
            "symbol": symbol,
            "size": size,
            "line": {"color": colour("panel"), "width": 1},
        },
        hovertemplate="%{customdata}<extra></extra>",
    )


def _band_axis(line: Timeline) -> Figure:
    return {
        "range": [0, 1],
        "tickvals": [(b.start + b.end) / 2 for b in line.bands],
        "ticktext": [b.phase for b in line.bands],
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"size": 11},
        "automargin": True,
    }


def _band_shapes(line: Timeline) -> list[Figure]:
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": band.start,
            "x1": band.end,
            "y0": 0,
            "y1": 1,
            "line": {"width": 0},
            "fillcolor": colour("band"),
            "layer": "below",
        }
        for band in line.bands[1::2]
    ]
