"""From printed megabytes to exact bytes, by the known formula of the site."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Final

from wstrace.bounds.by_rule import with_defaults
from wstrace.expr import expression
from wstrace.expr.expression import FormulaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from wstrace.expr.expression import Expression
    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.extract.facts import LockState, PrintedSize, StepDump

MOST_TRIED: Final = 20_000
WIDEST: Final = 1 << 26
# vLLM 0.13.0: what --block-size takes, from 16 on (later releases take any); the attention
# backends of 0.13.0 to 0.33.0 choose among these.
BLOCK_SIZES: Final = (16, 32, 64, 128, 256)
_SHOWN: Final = 8
_HEAD_SIZE: Final = 8
_HEADS_BY_SIZE: Final = 32
_WIDTHS: Final = ("_dim", "head_size")
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
class Fit:
    """Numbers that a text leaves open and that make a printed size, and its exact bytes.

    A product of two names is carried by the first: the formula knows only the product.
    """

    numbers: Mapping[str, int]
    bytes: int


@dataclass(frozen=True)
class Deduced:
    """What a printed size and the scheduler dump say of the numbers that a text lacks.

    `names` are the missing factors whose product is fixed, `fits` every way to make the size:
    a length fits several block sizes, and each has a product of its own.
    """

    names: tuple[str, ...]
    fits: tuple[Fit, ...]
    seen: str

    @property
    def why(self) -> str:
        """The product that the fits share, or the products, and what fixed them."""
        product = " * ".join(self.names)
        values = sorted({fit.numbers[self.names[0]] for fit in self.fits}) if self.names else []
        if not values:
            return ""
        several = " or ".join(map(str, values))
        return f"{product} = {several}: fixed by {self.seen} and the scheduler dump"

    @property
    def block_sizes(self) -> list[int]:
        """The block sizes that fit, none where the formula has none or it is known."""
        return sorted({f.numbers["block_size"] for f in self.fits if "block_size" in f.numbers})

    @property
    def blocks(self) -> str:
        """The block sizes that fit, in words."""
        return (
            f"{self.seen} and the scheduler dump fit only block_size {_some(self.block_sizes)}"
        )

    @property
    def bytes(self) -> int | None:
        """The exact size of the request, None where the fits leave several."""
        made = {fit.bytes for fit in self.fits}
        return made.pop() if len(made) == 1 else None

    def refuses(self, given: Mapping[str, int]) -> str:
        """The given numbers that none of the fits allows, in words; "" where one does."""
        told = [name for name in (*self.names, "block_size") if name in given]
        if not told or any(self._allows(fit, given) for fit in self.fits):
            return ""
        block = self.block_sizes and "block_size" in told
        return self.blocks if block else f"by the log, {self.why}"

    def _allows(self, fit: Fit, given: Mapping[str, int]) -> bool:
        block = given.get("block_size")
        if "block_size" in fit.numbers and block not in (None, fit.numbers["block_size"]):
            return False
        known = [given[name] for name in self.names if name in given]
        if not known:
            return True
        product = fit.numbers[self.names[0]]
        whole = len(known) == len(self.names)
        return prod(known) == product if whole else product % prod(known) == 0


def _some(sizes: Sequence[int]) -> str:
    shown = sizes if len(sizes) <= _SHOWN else [*sizes[: _SHOWN - 1], sizes[-1]]
    told = ", ".join(map(str, shown[:-1])) + (", ..." if len(sizes) > _SHOWN else "")
    return f"{told} or {shown[-1]}" if told else str(shown[-1])


def locked(printed: PrintedSize, locks: Iterable[LockState]) -> int | None:
    """The exact size, where a debug line of the lock prints one that fits."""
    fitting = {size for lock in locks for size in lock.sizes if printed.fits(size)}
    return fitting.pop() if len(fitting) == 1 else None


def exact_size(
    site: KnownSite, values: Mapping[str, int], printed: PrintedSize, step: StepDump | None
) -> Exact | None:
    """The exact bytes where one driver value alone prints as `printed`; None otherwise."""
    request = _request(site)
    numbers = with_defaults(site, values)
    free = sorted(request.names - numbers.keys())
    if not free:
        size = _evaluate(request, numbers)
        constant = size is not None and printed.fits(size)
        return Exact(size or 0, "the request is a constant") if constant else None
    if len(free) > 1 or free[0] not in site.drivers:
        return None
    driver = free[0]
    for seen in _seen(driver, step):
        size = _evaluate(request, {**numbers, driver: seen})
        if size is not None and printed.fits(size):
            return Exact(size, f"{driver} = {seen}, from the scheduler dump")
    if not site.variant.monotone:
        return None
    found = set(_solutions(request, numbers, driver, printed))
    sizes = {size for _, size in found}
    if len(sizes) != 1:
        return None
    first, last = min(found)[0], max(found)[0]
    told = str(first) if first == last else f"{first} to {last}"
    return Exact(sizes.pop(), f"only {driver} = {told} makes {printed.text}")


@dataclass(frozen=True)
class Made:
    """That a call of a site makes a printed size, with no number free: its bytes, and a width
    that the size itself fixes where that one was not known."""

    bytes: int
    solved: Mapping[str, int]


def fixed(
    site: KnownSite, values: Mapping[str, int], printed: PrintedSize, step: StepDump | None
) -> Made | bool:
    """How a call of the site makes `printed`; False where none does, True where numbers are
    missing to tell."""
    numbers = with_defaults(site, values)
    unknown = False
    for text in site.requests:
        request = _parsed(text)
        free = request.names - numbers.keys()
        made = _made(request, numbers, free, site, printed, step)
        if made is not None:
            return made
        unknown = unknown or not _tellable(free, site, step)
    return unknown


def _made(
    request: Expression,
    numbers: Mapping[str, int],
    free: frozenset[str],
    site: KnownSite,
    printed: PrintedSize,
    step: StepDump | None,
) -> Made | None:
    if not free:
        size = _evaluate(request, numbers)
        return Made(size, {}) if size is not None and printed.fits(size) else None
    name = next(iter(free))
    if len(free) > 1:
        return None
    if name in site.drivers:
        for seen in _seen(name, step):
            size = _evaluate(request, {**numbers, name: seen})
            if size is not None and printed.fits(size):
                return Made(size, {})
        return None
    if not name.endswith(_WIDTHS):
        return None
    ways = [(v, s) for v, s in _solutions(request, numbers, name, printed) if v % 32 == 0]
    return Made(ways[0][1], {name: ways[0][0]}) if len(ways) == 1 else None


def _tellable(free: frozenset[str], site: KnownSite, step: StepDump | None) -> bool:
    """Whether a call with these names free was tried: none, a dump's driver, or one width."""
    if len(free) > 1:
        return False
    name = next(iter(free), "")
    return not name or name.endswith(_WIDTHS) or (name in site.drivers and step is not None)


def of_driver(
    site: KnownSite, values: Mapping[str, int], driver: str, count: int
) -> int | None:
    """One request's bytes at a driver's value, where the driver is all that `values` lacks."""
    request = _request(site)
    numbers = with_defaults(site, values)
    if driver not in site.drivers or request.names - numbers.keys() != {driver}:
        return None
    return _evaluate(request, {**numbers, driver: count})


def deduced(
    site: KnownSite, values: Mapping[str, int], printed: PrintedSize, step: StepDump | None
) -> Deduced | None:
    """Up to two missing factors and the block size, as far as the dump and `printed` fix them.

    Head counts and sizes are not in a log, but bytes and cached tokens are. Only head sizes
    that are a multiple of 8 and products that are a multiple of 32 count.
    """
    if step is None:
        return None
    request = _request(site)
    numbers = with_defaults(site, values)
    missing = sorted(request.names - numbers.keys() - site.drivers.keys() - {"block_size"})
    drivers = [name for name in site.drivers if name in request.names]
    open_block = "block_size" in request.names and "block_size" not in numbers
    if len(missing) > 2 or len(drivers) != 1 or not (missing or open_block):
        return None
    fits: dict[tuple[tuple[str, int], ...], Fit] = {}
    for seen in _seen(drivers[0], step):
        for block in _blocks(step) if open_block else ({},):
            fixed = {**numbers, **block, drivers[0]: seen}
            if not _only_product(request, fixed, missing):
                return None
            for factors, size in _factors(request, fixed, missing, printed):
                fit = Fit({**block, **factors}, size)
                fits.setdefault(tuple(sorted(fit.numbers.items())), fit)
    return Deduced(tuple(missing), tuple(fits.values()), printed.text) if fits else None


def _blocks(step: StepDump) -> Iterator[dict[str, int]]:
    """The usual block sizes, and all multiples of 16 that divide a continued length: hybrid
    models have blocks of a thousand tokens and more."""
    lengths = [length for length in _continued(step) if length]
    divisors = {d for length in lengths for d in range(16, length + 1, 16) if length % d == 0}
    yield from ({"block_size": size} for size in sorted({*BLOCK_SIZES, *divisors}))


@cache
def _parsed(formula: str) -> Expression:
    return expression.parse(formula)


def _request(site: KnownSite) -> Expression:
    return _parsed(site.request_formula or site.formula)


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
    request: Expression, numbers: Mapping[str, int], driver: str, printed: PrintedSize
) -> Iterator[tuple[int, int]]:
    """(driver value, bytes) pairs that print as `printed`, for a formula that never falls."""

    def size(value: int) -> int:
        return _evaluate(request, {**numbers, driver: value}) or 0

    value = _first_at_least(size, printed.low)
    for candidate in range(value, value + MOST_TRIED):
        found = size(candidate)
        if not printed.fits(found):
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


def _only_product(request: Expression, numbers: Mapping[str, int], names: list[str]) -> bool:
    """True where the formula does not care which of two names carries a factor."""
    if len(names) < 2:
        return True
    first, second = names
    splits = ((64, 6), (6, 64), (384, 1))
    sizes = {_evaluate(request, {**numbers, first: a, second: b}) for a, b in splits}
    return len(sizes) == 1


def _factors(
    request: Expression, numbers: Mapping[str, int], names: list[str], printed: PrintedSize
) -> Iterator[tuple[dict[str, int], int]]:
    """Values of the missing names that make `printed`, with the bytes."""
    if not names:
        size = _evaluate(request, numbers)
        if size is not None and printed.fits(size):
            yield {}, size
        return
    others = dict.fromkeys(names[1:], 1)
    step = _HEADS_BY_SIZE if others else _HEAD_SIZE if "head_size" in names[0] else 1
    for value, size in _solutions(request, {**numbers, **others}, names[0], printed):
        if value % step == 0:
            yield {names[0]: value, **others}, size
