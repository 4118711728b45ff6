"""From printed megabytes to exact bytes, by the known formula of the site."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from wstrace.bounds.by_rule import with_defaults
from wstrace.expr import expression
from wstrace.expr.expression import FormulaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from wstrace.expr.expression import Expression
    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.extract.facts import Amount, StepDump

MOST_TRIED: Final = 20_000
WIDEST: Final = 1 << 26
BLOCK_SIZES: Final = (16, 32, 64, 128, 256)
_FROM_STEP: Final[Mapping[str, Callable[[StepDump], tuple[int | None, ...]]]] = {
    "num_computed_tokens": lambda step: _continued(step),
    "num_scheduled_tokens": lambda step: (step.total_tokens,),
    "num_padded_tokens": lambda step: (step.total_tokens,),
    "num_decodes": lambda step: (len(step.scheduled),),
    "num_reqs": lambda step: (len(step.scheduled),),
}


@dataclass(frozen=True)
class Exact:
    """The bytes behind a printed size, and the driver's value that makes them."""

    bytes: int
    why: str


@dataclass(frozen=True)
class Product:
    """Missing factors of a formula whose product the text itself fixes.

    `bytes` is the exact size of the request, None where the block size leaves several.
    """

    names: tuple[str, ...]
    value: int
    bytes: int | None
    why: str

    def as_values(self) -> dict[str, int]:
        """The product carried by the first name; the formula knows only the product."""
        return {name: self.value if i == 0 else 1 for i, name in enumerate(self.names)}


def exact(
    site: KnownSite, values: Mapping[str, int], amount: Amount, step: StepDump | None
) -> Exact | None:
    """The exact bytes where one driver value alone prints as `amount`; None otherwise."""
    request = _request(site)
    numbers = with_defaults(site, values)
    free = sorted(request.names - numbers.keys())
    if not free:
        size = _evaluate(request, numbers)
        constant = size is not None and amount.fits(size)
        return Exact(size or 0, "the request is a constant") if constant else None
    if len(free) > 1 or free[0] not in site.drivers:
        return None
    driver = free[0]
    for seen in _seen(driver, step):
        size = _evaluate(request, {**numbers, driver: seen})
        if size is not None and amount.fits(size):
            return Exact(size, f"{driver} = {seen}, from the scheduler dump")
    if not site.variant.monotone:
        return None
    found = set(_solutions(request, numbers, driver, amount))
    sizes = {size for _, size in found}
    if len(sizes) != 1:
        return None
    first, last = min(found)[0], max(found)[0]
    told = str(first) if first == last else f"{first} to {last}"
    return Exact(sizes.pop(), f"only {driver} = {told} makes {amount.text}")


def of_driver(
    site: KnownSite, values: Mapping[str, int], driver: str, count: int
) -> int | None:
    """One request's bytes at a driver's value, where the driver is all that `values` lacks."""
    request = _request(site)
    numbers = with_defaults(site, values)
    if driver not in site.drivers or request.names - numbers.keys() != {driver}:
        return None
    return _evaluate(request, {**numbers, driver: count})


def product(
    site: KnownSite, values: Mapping[str, int], amount: Amount, step: StepDump | None
) -> Product | None:
    """Two missing factors fixed by the message and the scheduler dump together.

    Head counts and sizes are not in a log, but bytes and cached tokens are. Only a product
    that is a multiple of 32 (heads of 32 elements and more) and the only such one counts.
    """
    if step is None:
        return None
    request = _request(site)
    numbers = with_defaults(site, values)
    missing = sorted(request.names - numbers.keys() - site.drivers.keys() - {"block_size"})
    drivers = [name for name in site.drivers if name in request.names]
    if len(missing) not in (1, 2) or len(drivers) != 1:
        return None
    found: set[tuple[int, int]] = set()
    for seen in _seen(drivers[0], step):
        for block in _blocks(request, numbers):
            fixed = {**numbers, **block, drivers[0]: seen}
            if not _only_product(request, fixed, missing):
                return None
            found |= _factors(request, fixed, missing, amount)
    if len({value for value, _ in found}) != 1:
        return None
    value = next(iter(found))[0]
    totals = {size for _, size in found}
    told = f"{' * '.join(missing)} = {value}: fixed by {amount.text} and the scheduler dump"
    exactly = totals.pop() if len(totals) == 1 else None
    return Product(tuple(missing), value, exactly, told)


def block_sizes(step: StepDump) -> list[int]:
    """The usual block sizes, and all multiples of 16 that divide a continued length."""
    lengths = [length for length in _continued(step) if length]
    divisors = {d for length in lengths for d in range(16, length + 1, 16) if length % d == 0}
    return sorted({*BLOCK_SIZES, *divisors})


@cache
def _parsed(formula: str) -> Expression:
    return expression.parse(formula)


def _request(site: KnownSite) -> Expression:
    return _parsed(site.request_formula or site.formula)


def _with_defaults(site: KnownSite, values: Mapping[str, int]) -> dict[str, int]:
    numbers = with_defaults(site, values)
    return {name: number for name, number in numbers.items() if name not in site.drivers}


def _evaluate(formula: Expression, numbers: Mapping[str, int]) -> int | None:
    try:
        return formula.evaluate(numbers)
    except FormulaError:
        return None


def _seen(driver: str, step: StepDump | None) -> Iterator[int]:
    """What the scheduler dump says the driver was, at most a few values."""
    read = _FROM_STEP.get(driver)
    if step is not None and read is not None:
        yield from (value for value in read(step)[:64] if value)


def _continued(step: StepDump) -> tuple[int, ...]:
    """Computed tokens of the requests that got the most new ones: those that continue."""
    most = max(step.scheduled, default=0)
    pairs = zip(step.scheduled, step.computed, strict=False)
    return tuple(computed for scheduled, computed in pairs if 2 * scheduled >= most)


def _solutions(
    request: Expression, numbers: Mapping[str, int], driver: str, amount: Amount
) -> Iterator[tuple[int, int]]:
    """(driver value, bytes) pairs that print as `amount`, for a formula that never falls."""

    def size(value: int) -> int:
        return _evaluate(request, {**numbers, driver: value}) or 0

    value = _first_at_least(size, amount.low)
    for candidate in range(value, value + MOST_TRIED):
        found = size(candidate)
        if not amount.fits(found):
            return
        yield candidate, found


def _first_at_least(size: Callable[[int], int], low: int) -> int:
    small, large = 0, WIDEST
    while small < large:
        middle = (small + large) // 2
        if size(middle) >= low:
            large = middle
        else:
            small = middle + 1
    return small


def _blocks(request: Expression, numbers: Mapping[str, int]) -> Iterable[dict[str, int]]:
    if "block_size" not in request.names or "block_size" in numbers:
        return ({},)
    return tuple({"block_size": size} for size in BLOCK_SIZES)


def _only_product(request: Expression, numbers: Mapping[str, int], names: list[str]) -> bool:
    """True where the formula does not care which of two names carries a factor."""
    if len(names) == 1:
        return True
    first, second = names
    splits = ((64, 6), (6, 64), (384, 1))
    sizes = {_evaluate(request, {**numbers, first: a, second: b}) for a, b in splits}
    return len(sizes) == 1


def _factors(
    request: Expression, numbers: Mapping[str, int], names: list[str], amount: Amount
) -> set[tuple[int, int]]:
    others = dict.fromkeys(names[1:], 1)
    found = _solutions(request, {**numbers, **others}, names[0], amount)
    return {(value, size) for value, size in found if value % 32 == 0}
