"""What drives a site's bytes: its requests against the scheduler quantity behind them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from wstrace.bounds.bound import Bound
from wstrace.bounds.evidence import rows_of
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.report.html.names import clean
from wstrace.report.html.sites import SiteRow
from wstrace.reserve.evaluate import numeric
from wstrace.runs.lock_epochs import Seen
from wstrace.trace.records import Limit, Request
from wstrace.vllm.roles import ROLES

MOST_CHARTS: Final = 6
MOST_POINTS: Final = 400
LINE_POINTS: Final = 160
MOST_STAIRS: Final = 4096  # values of a driver that are all looked at, to draw stairs upright
_GUESSES: Final = ("num_computed_tokens", "num_scheduled_tokens", "num_reqs", "seq_len")


@dataclass(frozen=True)
class Dot:
    """One size at one value of the driver, and whether it was asked after the lock."""

    x: int
    bytes: int
    after: bool


@dataclass
class DriverChart:
    """A site's requests over `driver`. Empty `line`: no formula is known. Sizes are bytes."""

    row: SiteRow
    driver: str
    meaning: str
    dots: list[Dot] = field(default_factory=list)
    left_out: int = 0
    line: list[tuple[int, int]] = field(default_factory=list)
    formula: str = ""
    held: dict[str, int] = field(default_factory=dict)
    limit: int | None = None
    limit_text: str = ""
    arena: int = 0


def driver_charts(rows: Sequence[SiteRow]) -> list[DriverChart]:
    """Charts of the sites that matter: escapes first, then by size; those with a driver."""
    charts: list[DriverChart] = []
    taken: set[str] = set()
    for row in rows[: MOST_CHARTS * 8]:
        chart = _chart(row) if row.name not in taken else None
        if chart is not None:
            taken.add(row.name)
            charts.append(chart)
        if len(charts) == MOST_CHARTS:
            break
    return charts


def _chart(row: SiteRow) -> DriverChart | None:
    sample, left_out = _sample(row)
    requests = [seen.request for seen in sample]
    bound = row.site.bound
    driver = _choose(requests, bound)
    if driver is None:
        return None
    role = _role(driver)
    meaning = ROLES[role].meaning if role in ROLES else ""
    chart = DriverChart(row, role, meaning, arena=row.arena, left_out=left_out)
    _add_dots(chart, sample)
    limits = row.site.uses[0][0].limits
    if driver in bound.drivers:
        chart.limit_text = bound.drivers[driver]
        chart.limit = _value(chart.limit_text, numeric(limits))
        _add_line(chart, bound, driver, limits)
    return chart if len(chart.dots) > 1 or chart.line else None


def _sample(row: SiteRow) -> tuple[list[Seen], int]:
    """The first request of each size, in warm-up and after; of many, spread over the sizes."""
    distinct: dict[tuple[int, bool], Seen] = {}
    for _, use in row.site.uses:
        for seen in use.seen:
            distinct.setdefault((seen.bytes, seen.outcome != "before"), seen)
    requests = [distinct[key] for key in sorted(distinct)]
    if len(requests) <= MOST_POINTS:
        return requests, 0
    last = len(requests) - 1
    chosen = {last * i // (MOST_POINTS - 1) for i in range(MOST_POINTS)}
    return [requests[i] for i in sorted(chosen)], len(requests) - len(chosen)


def _choose(requests: Sequence[Request], bound: Bound) -> str | None:
    """The driver with most different values; only the formula's own where there is one."""
    named = [d for d in bound.drivers if d in _names(bound.driver_formula)]
    candidates = named or list(_GUESSES)
    spread = {name: len(_values(requests, _role(name))) for name in candidates}
    best = max(candidates, key=lambda name: spread[name])
    return best if named or spread[best] > 1 else None


def _names(formula: str | None) -> frozenset[str]:
    try:
        return expression.parse(formula).names if formula else frozenset()
    except WstraceError:
        return frozenset()


def _role(variable: str) -> str:
    """`seq_len` of `seq_len_2`: a second quantity with the same role is numbered."""
    # matches: "seq_len_2"
    return variable if variable in ROLES else re.sub(r"_\d+$", "", variable)


def _values(requests: Sequence[Request], role: str) -> set[int]:
    return {value for request in requests if (value := driver_value(request, role)) is not None}


def driver_value(request: Request, role: str) -> int | None:
    """The quantity's value for one request: as its source had it, else as the step had it."""
    for leaf in request.provenance.leaves if request.provenance else ():
        if leaf.role == role and leaf.value is not None:
            return leaf.value
    known = rows_of(request.step)
    return known[0].get(role) if known else None


def _add_dots(chart: DriverChart, sample: Sequence[Seen]) -> None:
    dots: dict[Dot, None] = {}
    for seen in sample:
        value = driver_value(seen.request, chart.driver)
        if value is not None:
            dots[Dot(value, seen.bytes, seen.outcome != "before")] = None
    chart.dots = sorted(dots, key=lambda d: d.x)


def _add_line(
    chart: DriverChart, bound: Bound, driver: str, limits: Mapping[str, Limit]
) -> None:
    """The formula over the driver's range, every other driver held where the worst case is."""
    numbers = numeric(limits)
    held = {n: _held(n, bound, numbers) for n in bound.drivers if n != driver}
    if chart.limit is None or any(value is None for value in held.values()):
        return
    chart.held = {name: value for name, value in held.items() if value is not None}
    low = min([bound.lowest.get(driver, 0), *(dot.x for dot in chart.dots)])
    high = max([chart.limit, *(dot.x for dot in chart.dots)])
    known = {**numbers, **bound.constants, **chart.held}
    chart.formula = clean(bound.driver_formula or "", 600)
    formula = expression.parse(bound.driver_formula or "0")
    with suppress(WstraceError):
        chart.line = _line(low, high, lambda x: formula.evaluate({**known, driver: x}))


def _held(name: str, bound: Bound, numbers: Mapping[str, int]) -> int | None:
    return bound.at.get(name, _value(bound.drivers[name], numbers))


def _value(formula: str, names: Mapping[str, int]) -> int | None:
    try:
        return expression.parse(formula).evaluate(names)
    except WstraceError:
        return None


def _line(low: int, high: int, size: Callable[[int], int]) -> list[tuple[int, int]]:
    """The corners of the line where they are few; else points of it, evenly spread."""
    if high - low < MOST_STAIRS:
        points = [(x, size(x)) for x in range(low, high + 1)]
        corners = [p for i, p in enumerate(points) if _is_corner(points, i)]
        if len(corners) <= 2 * LINE_POINTS:
            return corners
    return [(x, size(x)) for x in _grid(low, high)]


def _is_corner(points: Sequence[tuple[int, int]], at: int) -> bool:
    """An end of the line, or a point where its slope changes."""
    if at in (0, len(points) - 1):
        return True
    before, here, after = (points[at + step][1] for step in (-1, 0, 1))
    return here - before != after - here


def _grid(low: int, high: int) -> list[int]:
    count = min(LINE_POINTS, high - low + 1)
    if count < 2:
        return [low, high] if high > low else [low]
    return sorted({low + (high - low) * i // (count - 1) for i in range(count)})
