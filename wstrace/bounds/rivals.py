"""One dimension of a shape: all simple formulas that give it, and the largest of them.

A dimension is a small integer, and code writes it as a quantity, a rounded quantity, a multiple
or a number of the layer. Few sizes cannot tell these apart where quantities move together or
stand still. So none is chosen: the dimension is the largest of its rivals, `max(...)`, which
gives every request seen, and under the limits as much as any of them needs. Where that is far
above the simplest rival, nothing is said: a longer trace decides it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from wstrace.bounds.inference import (
    STEPS,
    Fit,
    NoFit,
    Observation,
    Space,
    Undecided,
    hits,
    larger,
)
from wstrace.bounds.templates import Factor, Term, solve
from wstrace.errors import WstraceError

LEAST_VALUES: Final = 3
"""Distinct values of a dimension below which a formula through them says nothing; at so many
only a quantity itself, plain or rounded up, is believed."""
LEAST_TWO: Final = 5
"""The same for formulas of two quantities."""
APART: Final = 4
"""Rivals whose largest needs more than this many times the smallest decide nothing."""
_KINDS: Final = frozenset(("num_decodes", "num_decode_tokens", "num_decode_rows")) | {
    "num_prefills", "num_prefill_tokens",
}  # fmt: skip
"""Quantities that stand still in most traces: alone they may make a dimension, but they are not
looked for behind a number that never changed."""
_STEPS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rounding units of kernels' tiles and blocks; the config's own block size is added."""


@dataclass(frozen=True)
class Rival:
    """A formula of one quantity, and its value where that quantity is at its limit."""

    text: str
    most: int


def of_dimension(
    data: Sequence[Observation], space: Space, *, first: bool
) -> Fit | NoFit | None:
    """The largest rival for the sizes in `data`; None where no formula of one quantity gives
    them all. `first`: the shape's first axis, where a constant 1 is a batch of one.
    """
    values = {observation.size for observation in data}
    if len(values) == 1:
        value = values.pop()
        found = [Rival(str(value), value), *_constant(value, data, space, first)]
        return _largest(found, space)
    if len(values) < LEAST_VALUES:
        return None
    rivals = list(_varying(data, space)) or list(_of_two(data, space))
    return _largest(rivals, space) if rivals else None


def _of_two(data: Sequence[Observation], space: Space) -> Iterator[Rival]:
    """Sums of two quantities, or the larger of two formulas; each hit by enough requests."""
    if len({observation.size for observation in data}) < LEAST_TWO:
        return
    names = [name for name in space.ranges if len(_seen(name, data)) > 1]
    pairs = [(Term((Factor(a),)), Term((Factor(b),))) for a, b in combinations(names, 2)]
    rows, sizes = [o.rows[0] for o in data], [o.size for o in data]
    lines = [line for pair in pairs if (line := solve(pair, rows, sizes)) and hits(line, data)]
    for template in lines or larger(data, names, _steps(space)):
        with suppress(WstraceError):
            yield Rival(template.text(), space.maximum(template.text())[0])


def _largest(rivals: Sequence[Rival], space: Space) -> Fit | Undecided:
    least, most = min(r.most for r in rivals), max(r.most for r in rivals)
    if most > APART * least:
        low = next(r.text for r in rivals if r.most == least)
        high = next(r.text for r in rivals if r.most == most)
        return Undecided(f"a dimension fits {low} and {high}, which needs far more")
    kept = sorted({r.text for r in rivals if r.most > least} | {_simplest(rivals)})
    text = kept[0] if len(kept) == 1 else f"max({', '.join(kept)})"
    value, at = space.maximum(text)
    return Fit(text, value, at)


def _simplest(rivals: Sequence[Rival]) -> str:
    return min(rivals, key=lambda rival: (len(rival.text), rival.text)).text


def _constant(
    value: int, data: Sequence[Observation], space: Space, first: bool
) -> Iterator[Rival]:
    """What a number that never changed may be: a quantity under it, rounded or floored."""
    for name, (_, high) in space.ranges.items():
        seen = _seen(name, data)
        if not seen or high <= value or name in _KINDS:
            continue
        if seen == {value}:
            yield Rival(name, high)
        if first and value > 1 and max(seen) <= value:
            yield Rival(f"max({name}, {value})", high)
        yield from _rounded_to(name, value, seen, high, space)
        if value > 1 and not first:
            yield from _level(name, value, high, data, space)
        if value == 1 and not first and max(seen) > 1:
            step = next((s for s in STEPS if s >= max(seen)), high)
            yield Rival(f"ceil_div({name}, {step})", -(-high // step))


def _level(
    name: str, value: int, high: int, data: Sequence[Observation], space: Space
) -> Iterator[Rival]:
    """q in steps, where every request happened to lie in the same one: two splits of 512 for
    sequences of 535 to 922 tokens are sixteen for 8192."""
    seen = {max(row[name] for row in o.rows) for o in data}  # the longest of a batch
    for step in sorted({*STEPS, *_steps(space)}):
        if step > 1 and len(seen) > 1 and {-(-x // step) for x in seen} == {value}:
            yield Rival(f"ceil_div({name}, {step})", -(-high // step))


def _rounded_to(
    name: str, value: int, seen: set[int], high: int, space: Space
) -> Iterator[Rival]:
    """q rounded up to `value` in every request."""
    for step in _steps(space):
        level = {-(-x // step) for x in seen}
        if step > 1 and level == {value // step} and value % step == 0:
            yield Rival(f"round_up({name}, {step})", -(-high // step) * step)


def _varying(data: Sequence[Observation], space: Space) -> Iterator[Rival]:
    """a * round_up(q, s) + c and a * ceil_div(q, s) + c that give every value."""
    few = len({observation.size for observation in data}) <= LEAST_VALUES
    for name, (_, high) in space.ranges.items():
        for step in _steps(space) if _seen(name, data) else ():
            line = _line(name, step, data)
            if line is not None and not (few and line != (step, 0)):
                yield from _with_coefficient(name, step, *line, high, data, space)
    if all(row["num_reqs"] * row["query_len"] == o.size for o in data for row in o.rows[:1]):
        product = "num_reqs * query_len"  # a batch padded to its longest request
        with suppress(WstraceError):
            yield Rival(product, space.maximum(product)[0])


def _with_coefficient(
    name: str,
    step: int,
    slope: int,
    constant: int,
    high: int,
    data: Sequence[Observation],
    space: Space,
) -> Iterator[Rival]:
    """The line, and the line where its coefficient is a quantity that stood still."""
    levels = -(-high // step)
    term = _term(name, step, slope)
    plus = f" + {constant}" if constant else ""
    yield Rival(f"{term}{plus}", slope * levels + constant)
    for other, (_, most) in space.ranges.items():
        seen = _seen(other, data)
        still = max(seen, default=0) if len(seen) == 1 else 0
        if other in _KINDS or other == name or not 0 < still < most or slope % still:
            continue
        yield Rival(
            f"{slope // still} * {other} * ceil_div({name}, {step}){plus}",
            slope // still * most * levels + constant,
        )


def _line(name: str, step: int, data: Sequence[Observation]) -> tuple[int, int] | None:
    """(a, c) of a * ceil_div(q, step) + c through all values, a above 0 and c not below 0."""
    points = [(-(-o.rows[0][name] // step), o.size) for o in data]
    low, high = min(points), max(points)
    if low[0] == high[0] or (high[1] - low[1]) % (high[0] - low[0]):
        return None
    slope = (high[1] - low[1]) // (high[0] - low[0])
    constant = low[1] - slope * low[0]
    if slope < 1 or constant < 0:
        return None
    hit = all(
        any(slope * -(-row[name] // step) + constant == o.size for row in o.rows) for o in data
    )
    return (slope, constant) if hit else None


def _term(name: str, step: int, slope: int) -> str:
    if step == 1:
        return name if slope == 1 else f"{slope} * {name}"
    whole, rest = divmod(slope, step)
    if rest:
        term, factor = f"ceil_div({name}, {step})", slope
    else:
        term, factor = f"round_up({name}, {step})", whole
    return term if factor == 1 else f"{factor} * {term}"


def _seen(name: str, data: Sequence[Observation]) -> set[int]:
    """The values of a quantity; none where a request does not say."""
    if any(name not in row for o in data for row in o.rows):
        return set()
    return {row[name] for o in data for row in o.rows[:1]}


def _steps(space: Space) -> tuple[int, ...]:
    block = space.numbers.get("block_size", 1)
    return tuple(sorted({*_STEPS, block}))
