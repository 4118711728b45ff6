"""What a reserve costs in KV cache, and the cheaper choices where the worst case is absurd.

Bytes in an arena are bytes that KV sizing does not get: each rank loses whole blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wstrace.bounds.bound import FLAGS, Bound, reserve_of
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.reserve.evaluate import numeric, site_bytes
from wstrace.reserve.schema import Cost, SiteReserve
from wstrace.trace.records import Limit, Memory
from wstrace.units import human

_ABSURD_SHARE: Final = 4
_ABSURD_BYTES: Final = 8 << 30


@dataclass(frozen=True)
class Point:
    """The bound where `name` is `value`: bytes, and the KV tokens and blocks they displace."""

    name: str
    value: int
    bytes: int
    tokens: int | None
    blocks: int | None


@dataclass(frozen=True)
class Rung:
    """One choice of what to reserve for a site: what it still covers, and what fails."""

    choice: str
    bytes: int
    covers: str
    fails: str
    tokens: int | None = None


def block_bytes(memory: Memory | None) -> int | None:
    """Bytes of one KV block on a rank, all layers; None where the trace does not say."""
    if memory is None:
        return None
    if memory.bytes_per_block:
        return memory.bytes_per_block
    if memory.available_kv_bytes and memory.num_gpu_blocks:
        return memory.available_kv_bytes // memory.num_gpu_blocks
    return None


def blocks_and_tokens(
    size: int, memory: Memory | None, limits: Mapping[str, Limit]
) -> tuple[int | None, int | None]:
    """KV blocks, and the tokens in them, that `size` bytes displace on one rank.

    Whole blocks: a started one is lost.
    """
    per_block = block_bytes(memory)
    if not per_block:
        return None, None
    blocks = -(-size // per_block)
    tokens = (memory.block_size if memory else None) or numeric(limits).get("block_size")
    return blocks, blocks * tokens if tokens else None


def kv_cost(extra: int, memory: Memory | None, limits: Mapping[str, Limit]) -> Cost:
    """The cost of `extra` bytes that profiling does not count without the reserve.

    Where the KV size is fixed nothing pays for them: the note says what to lower.
    """
    blocks, tokens = blocks_and_tokens(extra, memory, limits)
    fixed = memory.fixed_kv if memory else None
    if fixed is None:
        return Cost(bytes=extra, tokens=tokens, blocks=blocks)
    less = f"{blocks} blocks" if "blocks" in fixed and blocks else f"{extra:,} bytes"
    note = f"The KV cache size is fixed by {fixed}: lower it by {less}, or memory may run out."
    return Cost(bytes=extra, tokens=tokens, blocks=blocks, counted=False, note=note)


def is_absurd(size: int, memory: Memory | None) -> bool:
    """True where a reserve takes a quarter of the KV cache, or 8 GiB where that is unknown."""
    if memory is None or not memory.available_kv_bytes:
        return size > _ABSURD_BYTES
    return size * _ABSURD_SHARE > memory.available_kv_bytes


def driving_limit(bound: Bound) -> str | None:
    """The limit that the bound follows and that a flag of vLLM sets."""
    if bound.formula is None:
        return None
    names = set(expression.parse(bound.formula).names)
    for limit in bound.drivers.values():
        names |= expression.parse(limit).names
    return next((name for name in FLAGS if name in names), None)


def at_limits(bound: Bound, limits: Mapping[str, Limit], **changes: int) -> int:
    """The bound's bytes where some limits are others. Raises WstraceError as formulas do."""
    return site_bytes(reserve_of(bound), limits, {**limits, **changes})


def curve(
    bound: Bound,
    limits: Mapping[str, Limit],
    memory: Memory | None = None,
    values: Sequence[int] = (),
) -> list[Point]:
    """The bound over the limit that drives it: an eighth of today's value to its double."""
    name = driving_limit(bound)
    now = numeric(limits).get(name or "")
    if name is None or now is None:
        return []
    points = []
    for value in values or sorted({max(1, now * eighths // 8) for eighths in (1, 2, 4, 8, 16)}):
        try:
            size = at_limits(bound, limits, **{name: value})
        except WstraceError:
            continue
        blocks, tokens = blocks_and_tokens(size, memory, limits)
        points.append(Point(name, value, size, tokens, blocks))
    return points


def ladder(
    bound: Bound,
    limits: Mapping[str, Limit],
    memory: Memory | None = None,
    p99: int | None = None,
) -> list[Rung]:
    """Choices for a site from the whole bound down to what was seen, the largest first."""
    rungs = [*_whole(bound), *_lowered(bound, limits), *_seen(bound, p99, limits)]
    distinct = {rung.bytes: rung for rung in reversed(rungs)}
    return [
        replace(rung, tokens=blocks_and_tokens(rung.bytes, memory, limits)[1])
        for _, rung in sorted(distinct.items(), reverse=True)
    ]


def _whole(bound: Bound) -> list[Rung]:
    if bound.bytes is None or bound.grade == "observed":
        return []
    return [Rung("bound", bound.bytes, "every request under these limits", "nothing")]


def _lowered(bound: Bound, limits: Mapping[str, Limit]) -> list[Rung]:
    name, rungs = driving_limit(bound), []
    for point in curve(bound, limits):
        if bound.observed <= point.bytes < (bound.bytes or 0):
            flag = f"{FLAGS[name or '']} {point.value}"
            covers = f"every request, if vLLM is started with {flag}"
            rungs.append(Rung(flag, point.bytes, covers, f"nothing that {flag} lets in"))
    return rungs


def _seen(bound: Bound, p99: int | None, limits: Mapping[str, Limit]) -> list[Rung]:
    most = bound.bytes if bound.bytes is not None and bound.grade != "observed" else None
    choices = [
        ("twice observed", 2 * bound.observed, "up to twice the largest request seen"),
        ("observed", bound.observed, "the largest request seen"),
        ("p99", p99 or 0, "99 % of the different sizes seen"),
    ]
    return [
        Rung(choice, size, covers, _fails_above(size, bound, limits))
        for choice, size, covers in choices
        if size and (most is None or size < most)
    ]


def _fails_above(size: int, bound: Bound, limits: Mapping[str, Limit]) -> str:
    return f"any request above {human(size)}{threshold(reserve_of(bound), size, limits)}"


def threshold(site: SiteReserve, size: int, limits: Mapping[str, Limit]) -> str:
    """Where requests outgrow `size`, if one rising driver decides: ', num_reqs above 12'.

    Empty where no request fits: see `smallest`.
    """
    driven = _driven(site, limits)
    last = _last_within(driven, size) if driven else None
    return f", {driven.name} above {last}" if driven and last is not None else ""


def smallest(site: SiteReserve, limits: Mapping[str, Limit]) -> int | None:
    """Bytes of the smallest request that the site makes, one of no bytes being none.

    None where no single driver decides.
    """
    driven = _driven(site, limits)
    if driven is None:
        return None
    empty = _last_within(driven, 0)
    return driven.bytes(driven.low if empty is None else min(empty + 1, driven.high))


@dataclass(frozen=True)
class _Driven:
    """A need that one driver decides, in its range."""

    name: str
    low: int
    high: int
    formula: expression.Expression
    numbers: Mapping[str, int]

    def bytes(self, value: int) -> int:
        return self.formula.evaluate({**self.numbers, self.name: value})


def _driven(site: SiteReserve, limits: Mapping[str, Limit]) -> _Driven | None:
    """None where several drivers, or none, decide, or a number is missing."""
    if len(site.drivers) != 1 or site.formula is None:
        return None
    ((name, limit),) = site.drivers.items()
    numbers = {**numeric(limits), **site.constants}
    low = site.lowest.get(name, 0)
    try:
        high = max(low, expression.parse(limit).evaluate(numbers))
        driven = _Driven(name, low, high, expression.parse(site.formula), numbers)
        _last_within(driven, 0)  # evaluates at both ends and between
    except WstraceError:
        return None
    return driven


def _last_within(driven: _Driven, size: int) -> int | None:
    """The last value whose need is at most `size`; None where already the first is above."""
    low, high = driven.low, driven.high + 1
    if driven.bytes(low) > size:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if driven.bytes(middle) > size else (middle, high)
    return low
