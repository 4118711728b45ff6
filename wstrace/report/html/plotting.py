"""What the figures are put together from: axes, lines, labels, layout, and the theme's colours.

Colours are names of CSS variables: the page replaces them by the theme's values and draws
again when the theme changes; `resolved` does the same for a notebook.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from wstrace.report import assets
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
    # its smallest one, named: plotly would read and validate its default one for each figure
    spec: Figure = go.Figure(list(traces), layout | {"template": "none"}).to_plotly_json()
    del spec["layout"]["template"]
    return spec


def resolved(spec: Figure, theme: str) -> go.Figure:
    """The figure with a theme's colours in place of their names, to show outside the page."""
    colours = _theme(theme)
    figure = go.Figure(_with_values(spec, colours))
    paper = {"paper_bgcolor": colours["panel"], "plot_bgcolor": colours["panel"]}
    return figure.update_layout(template="none", **paper)


def _theme(theme: str) -> dict[str, str]:
    """The values of CSS variables in report.css, the dark ones over the light ones."""
    css = assets.read_text("report.css")
    blocks = [css.partition(":root {")[2]]
    if theme == "dark":
        blocks.append(css.partition(':root[data-theme="dark"] {')[2])
    # matches: "--page: #fbfbfa;"
    return dict(
        pair
        for block in blocks
        for pair in re.findall(r"--([\w-]+):\s*([^;]+);", block.partition("}")[0])
    )


def _with_values(value: Any, colours: dict[str, str]) -> Any:
    if isinstance(value, str):
        # matches: "var(--error)"
        name = re.fullmatch(r"var\(--([\w-]+)\)", value)
        return colours[name[1]] if name else colours["sans"] if value == "inherit" else value
    if isinstance(value, dict):
        return {key: _with_values(each, colours) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_values(each, colours) for each in value]
    return value
