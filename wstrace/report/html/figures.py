"""The figures' definitions, in plotly. Colours are names of CSS variables: the page replaces
them by the theme's values and draws again when the theme changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import plotly.graph_objects as go

from wstrace.analysis.compare import SiteChange
from wstrace.report.html.drivers import Dot, DriverChart
from wstrace.report.html.memory import MemoryView
from wstrace.report.html.names import clean, figure_text
from wstrace.report.html.sites import MOST_BARS, SiteRow
from wstrace.report.html.timeline import Kind, Point, Timeline
from wstrace.units import human

Figure = dict[str, Any]
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


def colour(name: str) -> str:
    """A theme colour, by the name of its CSS variable."""
    return f"var(--{name})"


def timeline(line: Timeline) -> Figure:
    """Arena as a staircase, requests as points, phases as bands, locks as lines."""
    traces: list[Any] = [_staircase(line.arena)]
    for kind, points in line.points.items():
        if points:
            traces.append(_scatter(kind, points))
    layout = _layout(height=340, y=_bytes_axis(_sizes(line)))
    layout["xaxis"] = _band_axis(line)
    layout["shapes"] = [*_band_shapes(line), *(_vertical(m.x) for m in line.marks)]
    layout["annotations"] = [_label(m.x, m.text, i) for i, m in enumerate(line.marks)]
    return _spec(traces, layout)


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


def _vertical(x: float, name: str = "ink") -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "line": {"color": colour(name), "width": 1, "dash": "dot"},
    }


def _label(x: float, text: str, index: int = 0) -> Figure:
    return {
        "x": x,
        "xref": "x",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 2 + 14 * (index % 2),
        "xanchor": "right" if x > 0.8 else "center",
        "showarrow": False,
        "text": figure_text(text, 60),
        "font": {"size": 11, "color": colour("soft")},
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
    layout = _layout(height=110 + 54 * len(shown))
    layout["barmode"] = "group"
    layout["bargap"] = 0.35
    layout["xaxis"] = _bytes_axis([max(r.serving, r.warmup, r.bound or 0) for r in shown])
    layout["yaxis"] = {"automargin": True, "tickfont": {"size": 11}, "fixedrange": True}
    return _spec(traces, layout)


def _site_label(row: SiteRow) -> str:
    """Unique by its number: a bar chart merges bars whose labels are equal."""
    mark = {"escaped": "✕ ", "latent": "△ ", "warmed": ""}[row.state]
    slot = f" ({row.slot})" if row.slot else ""
    return f"{mark}{row.number} {figure_text(_short_name(row.caller), 30)}{slot}"


def _short_name(caller: str) -> str:
    """The function of `file:line:function`."""
    return caller.rpartition(":")[2] or caller


def _serving_colours(rows: Sequence[SiteRow]) -> list[str]:
    names = {"escaped": "error", "latent": "warn", "warmed": "serving"}
    return [colour(names[row.state]) for row in rows]


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
    layout = _layout(height=320, y=_bytes_axis(sizes))
    layout["xaxis"] = {
        "title": {"text": chart.driver, "standoff": 8},
        "rangemode": "tozero",
        "zeroline": False,
        "gridcolor": colour("line"),
        "tickformat": ",d",
        "tickfont": {"size": 11},
    }
    layout["shapes"] = [_horizontal(chart.arena)]
    layout["annotations"] = [_arena_label(chart.arena)]
    if chart.limit is not None:
        layout["shapes"].append(_vertical(chart.limit, "bound"))
        layout["annotations"].append(_label(chart.limit, f"limit {chart.limit:,}"))
        layout["annotations"][-1]["xanchor"] = "right"
    return _spec(traces, layout)


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


def _horizontal(y: int) -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": colour("arena"), "width": 1.5, "dash": "dash"},
    }


def _arena_label(y: int) -> Figure:
    return {
        "x": 0,
        "xref": "paper",
        "y": y,
        "yref": "y",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "text": f"arena {human(y)}",
        "font": {"size": 11, "color": colour("soft")},
    }


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
    layout = _layout(height=150 + 40 * len(columns))
    layout["barmode"] = "stack"
    totals = [sum(p.now for p in view.parts), sum(p.after or 0 for p in view.parts)]
    layout["xaxis"] = _bytes_axis([*totals, view.total or 0])
    layout["yaxis"] = {"automargin": True, "fixedrange": True}
    if view.total:
        layout["shapes"] = [_vertical(view.total)]
        layout["annotations"] = [_label(view.total, f"device {human(view.total)}")]
        layout["annotations"][0]["xanchor"] = "right"
    return _spec(traces, layout)


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
    layout = _layout(height=110 + 54 * len(shown))
    layout["barmode"] = "group"
    layout["bargap"] = 0.35
    layout["xaxis"] = _bytes_axis([max(c.bytes_a, c.bytes_b) for c in shown])
    layout["yaxis"] = {"automargin": True, "tickfont": {"size": 11}, "fixedrange": True}
    return _spec(traces, layout)


def _caller(change: SiteChange) -> str:
    seen = change.b or change.a
    return clean((seen.caller if seen else "") or str(change.key))


def _bytes_axis(sizes: Iterable[int]) -> Figure:
    """Ticks at round binary sizes, named as people write them: 64 MiB, not 70M.

    `tickvals` serve the linear scale and `logticks` (powers) the logarithmic one; the page
    swaps them.
    """
    largest = max(sizes, default=0)
    step = _step(largest)
    ticks = [step * i for i in range(int(largest // step) + 2)]
    return {
        "tickvals": ticks,
        "ticktext": [_short(t) for t in ticks],
        "rangemode": "tozero",
        "range": [0, largest * 1.12 or 1],
        "gridcolor": colour("line"),
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 11},
    }


def _step(largest: int) -> int:
    """A power of two that divides the axis into four to eight parts."""
    step = 1
    while step * 6 < largest:
        step *= 2
    return step


def _short(size: int) -> str:
    return human(size).replace(".00", "") if size else "0"


def _layout(height: int, y: Figure | None = None) -> Figure:
    layout: Figure = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 14, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": colour("ink"), "size": 12, "family": "inherit"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -0.18,
            "yanchor": "top",
            "font": {"size": 12},
        },
        "hoverlabel": {
            "bgcolor": colour("panel"),
            "bordercolor": colour("line-strong"),
            "font": {"color": colour("ink"), "size": 12},
            "align": "left",
        },
        "hovermode": "closest",
        "dragmode": False,
    }
    if y is not None:
        layout["yaxis"] = y
    return layout


def _spec(traces: Sequence[Any], layout: Figure) -> Figure:
    """Validated by plotly, without its template (which is larger than most figures)."""
    labels = layout.get("annotations", [])
    rows = max((label.get("yshift", 0) for label in labels), default=0)
    if any(label.get("yref") == "paper" for label in labels):
        layout["margin"]["t"] = 34 + rows
    figure = go.Figure(list(traces), layout)
    figure.update_layout(template=None)
    spec: Figure = figure.to_plotly_json()
    spec["layout"].pop("template", None)
    return spec
