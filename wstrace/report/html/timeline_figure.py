"""The figure of one slot's timeline: a staircase, points, bands and marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from wstrace.report.html.plotting import (
    Figure,
    base_layout,
    bytes_axis,
    colour,
    label,
    validated,
    vertical,
)
from wstrace.report.html.timeline import Kind, Point, Timeline

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
