"""What all figures share: theme colours, axes in bytes, lines with labels, validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from wstrace.report.html.names import figure_text
from wstrace.units import human

Figure = dict[str, Any]


def colour(name: str) -> str:
    """A theme colour, by the name of its CSS variable."""
    return f"var(--{name})"


def vertical(x: float, name: str = "ink") -> Figure:
    """A dotted line over the whole height at `x`."""
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


def label(x: float, text: str, index: int = 0) -> Figure:
    """A text above the plot at `x`; odd ones stand a row higher."""
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


def horizontal(y: int) -> Figure:
    """The arena: a dashed line over the whole width at `y` bytes."""
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


def arena_label(y: int) -> Figure:
    """The name of that line, at its left end."""
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


def bytes_axis(sizes: Iterable[int]) -> Figure:
    """Ticks at round binary sizes, named as people write them: 64 MiB, not 70M.

    These serve the linear scale; the page makes those of the logarithmic one.
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


def base_layout(height: int, y: Figure | None = None) -> Figure:
    """Margins, fonts, legend and hover label; `height` in CSS pixels."""
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


def validated(traces: Sequence[Any], layout: Figure) -> Figure:
    """Validated by plotly, without its template (which is larger than most figures)."""
    labels = layout.get("annotations", [])
    rows = max((each.get("yshift", 0) for each in labels), default=0)
    if any(each.get("yref") == "paper" for each in labels):
        layout["margin"]["t"] = 34 + rows
    figure = go.Figure(list(traces), layout)
    figure.update_layout(template=None)
    spec: Figure = figure.to_plotly_json()
    spec["layout"].pop("template", None)
    return spec
