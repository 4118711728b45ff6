"""Which known site it was, how many bytes it can ever need, and whether the text agrees.

Numbers may not be those of the failing server: the log itself shows more, or other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final

from wstrace.bounds.bound import Bound
from wstrace.bounds.by_rule import rule_bound
from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.known_sites import known
from wstrace.triage.diagnose import releases, sizes
from wstrace.units import exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wstrace.findings.finding import Finding, Span
    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.diagnose.numbers import Given
    from wstrace.triage.extract.engine_settings import Value
    from wstrace.triage.extract.facts import PrintedSize, StepDump

_BLOCK: Final = (
    "the log names no block_size: {block_size} needs most of those that fit the step; the line "
    "'Setting attention block size to N tokens' would tell"
)


def _at_most(
    site: KnownSite, numbers: Mapping[str, int], size: PrintedSize, step: StepDump | None
) -> bool:
    """Whether the printed size is the site's worst case: a step at its limit asked for it. A
    free driver makes nearly every size, this one does not."""
    most = rule_bound(site, numbers).bytes
    return most is not None and size.fits(most)


@dataclass(frozen=True)
class Rule:
    """The known site of a call with the formula that counts, the releases that its size fits,
    and a number that the size fixes, where it tells any."""

    site: KnownSite | None = None
    fits: tuple[Span, ...] = ()
    solved: Mapping[str, int] = field(default_factory=dict)


def choose_rule(
    paths: Iterable[str | None],
    function: str | None,
    version: str | None,
    numbers: Mapping[str, int],
    size: PrintedSize | None,
    step: StepDump | None = None,
) -> Rule:
    """The known site; of alternatives at one call the one that makes the printed bytes.

    `paths` are the file's names, the longest first: some base names stand for several files.
    """
    site = _matching(paths, function or "", version, numbers, size, step)
    if site is None:
        return Rule()
    fits, solved = releases.fitting(site, numbers, size, step)
    return Rule(releases.held(site, version, fits), tuple(fits), solved)


def _matching(
    paths: Iterable[str | None],
    function: str,
    version: str | None,
    numbers: Mapping[str, int],
    size: PrintedSize | None,
    step: StepDump | None,
) -> KnownSite | None:
    for path in paths:
        first = known.match(path, function, version) if path else None
        if first is None or path is None:
            continue
        if size is not None and size.bytes is not None:
            rules = known.matches(path, function, version)
            for fits in (_at_most, sizes.exact_size):
                for site in rules:
                    if fits(site, numbers, size, step):
                        return site
        return first
    return None


CHOICES: Final = 64


def of_site(rivals: Mapping[str, set[int]], site: KnownSite | None) -> dict[str, set[int]]:
    """Those of the numbers that can move what `site` needs: its formula's own, and the
    tensor-parallel size, by which a model's heads become a rank's."""
    used = {*parse(site.formula).names, "tensor_parallel_size"} if site else set()
    return {name: found for name, found in rivals.items() if name in used}


def choices(
    config: Mapping[str, Value], rivals: Mapping[str, set[int]]
) -> list[dict[str, Value]]:
    """The settings' own choice, then the other combinations of numbers on which commands
    disagree; past CHOICES the largest number of each alone."""
    own: dict[str, Value] = {name: config[name] for name in rivals}
    if prod(len(found) for found in rivals.values()) > CHOICES:
        most: dict[str, Value] = {name: max(found) for name, found in rivals.items()}
        return [own, most]
    every = product(*(sorted(values) for values in rivals.values()))
    found: list[dict[str, Value]] = [dict(zip(rivals, n, strict=True)) for n in every]
    return [own, *found]


def largest_of(numbers: Sequence[dict[str, int]], site: KnownSite) -> dict[str, int]:
    """Of several sets of numbers the one by which `site` needs most; the first of equals."""
    return max(numbers, key=lambda one: rule_bound(site, one).bytes or 0)


def site_bound(
    site: KnownSite | None,
    numbers: Mapping[str, int],
    deduced: sizes.Deduced | None = None,
    start_up: bool = False,
) -> Bound | None:
    """The bound of a site, with the numbers that the text's own sizes fix where some lack.

    None: no rule is known for the site. Grade `fitted` where the text's sizes gave a number;
    of several ways that fit, the one with the largest need counts. A block size is taken from
    the sizes only where the text shows the start-up (`start_up`), which would have named it.
    """
    if site is None:
        return None
    found = rule_bound(site, numbers)
    if found.bytes is not None or deduced is None:
        return replace(found, why=_why(site, found.assumed))
    filled, block = _largest(site, numbers, deduced, start_up)
    found = rule_bound(site, filled)
    assumed = (*found.assumed, *filter(None, (deduced.why, block)))
    if found.bytes is not None:
        used = parse(site.formula).names & filled.keys()
        found = replace(found, constants=found.constants | {n: filled[n] for n in sorted(used)})
    return replace(found, grade="fitted", assumed=assumed, why=_why(site, assumed))


def with_solved(bound: Bound, solved: Mapping[str, int], seen: PrintedSize) -> Bound:
    """`bound` as one that rests on a number which the printed size fixed."""
    told = tuple(f"{name} = {value}: fixed by {seen.text}" for name, value in solved.items())
    return replace(bound, grade="fitted", assumed=(*bound.assumed, *told))


def of_release(
    bound: Bound | None, rule: Rule, version: str | None, seen: PrintedSize | None
) -> Bound | None:
    """`bound` as one that rests on the formula which the printed size shows, where that is
    not the formula of the text's own `version`: for this one nothing is proved."""
    if bound is None or seen is None or not releases.contradicted(rule.fits, version):
        return bound
    told = f"the formula that makes {seen.text}: it is not that of {version}"
    return replace(bound, grade="fitted", assumed=(*bound.assumed, told))


def _largest(
    site: KnownSite, numbers: Mapping[str, int], deduced: sizes.Deduced, start_up: bool
) -> tuple[dict[str, int], str]:
    """The numbers of the fit that needs most, of equal ones that with the smallest block; and
    what is to be said of the block size."""

    def filled(fit: sizes.Fit) -> dict[str, int]:
        return {**numbers, **fit.numbers}

    def need(fit: sizes.Fit) -> tuple[int, int]:
        return rule_bound(site, filled(fit)).bytes or 0, -fit.numbers.get("block_size", 0)

    largest = filled(max(deduced.fits, key=need))
    if not deduced.block_sizes:
        return largest, ""
    if start_up:
        return largest, _BLOCK.format(**largest)
    largest.pop("block_size")
    return largest, ""


def _why(site: KnownSite, assumed: tuple[str, ...]) -> str:
    told = f" Assumed: {'; '.join(assumed)}." if assumed else ""
    return f"known site {site.id}: {site.title}.{told}"


def refuse_unfitting(
    site: KnownSite,
    numbers: Mapping[str, int],
    given: Given,
    seen: PrintedSize,
    steps: Sequence[StepDump],
) -> None:
    """WstraceError where the person gives what no way to make the printed size allows.

    Every dump near the failure has to refuse it: with data parallelism each engine has one.
    """
    used = parse(site.request_formula or site.formula).names & given.numbers.keys()
    loose = {name: value for name, value in numbers.items() if name not in used}
    found = [sizes.deduced(site, loose, seen, step) for step in steps] if used else []
    told = [deduced.refuses(given.numbers) for deduced in found if deduced is not None]
    if told and all(told):
        sets = " ".join(f"{given.option} {name}={given.numbers[name]}" for name in sorted(used))
        raise WstraceError(
            f"{sets} contradicts the log: {told[0]}.",
            "Give the failing server's own numbers, per rank, or leave them out.",
        )


_DRIVER: Final = "num_computed_tokens"


def checked(
    bound: Bound | None,
    site: KnownSite | None,
    numbers: Mapping[str, int],
    seen: PrintedSize | None,
    steps: Sequence[StepDump],
) -> Bound | None:
    """`bound` without bytes where the printed size cannot follow from `numbers`.

    A worst case must be no less than what was asked for, and the cached tokens of a
    scheduler dump must give the printed size to its last digit.
    """
    if bound is None or site is None or seen is None or seen.bytes is None:
        return bound
    told = _too_small(bound, seen) or _another_size(site, numbers, seen, steps)
    if not told:
        return bound
    return replace(bound, bytes=None, needs=(), contradiction=told)


def spread(findings: Iterable[Finding]) -> list[Finding]:
    """One contradicted rank of a site takes the bound from all: they share the numbers."""
    found = list(findings)
    told = {f.where: f.bound.contradiction for f in found if f.bound and f.bound.contradiction}
    return [
        replace(f, bound=replace(f.bound, bytes=None, contradiction=told[f.where]))
        if f.where in told and f.bound and f.bound.bytes is not None
        else f
        for f in found
    ]


def _too_small(bound: Bound, seen: PrintedSize) -> str:
    if bound.bytes is None or bound.bytes >= seen.low:
        return ""
    return (
        f"these numbers contradict {seen.text} seen: by them the site needs at most "
        f"{exact(bound.bytes)}"
    )


def _another_size(
    site: KnownSite, numbers: Mapping[str, int], seen: PrintedSize, steps: Sequence[StepDump]
) -> str:
    """Compared with every dump near the failure: with data parallelism each engine has one."""
    tokens = sorted({count for step in steps for count in step.computed if count})
    found = {count: sizes.of_driver(site, numbers, _DRIVER, count) for count in tokens}
    made = {count: size for count, size in found.items() if size is not None}
    if not made or any(seen.fits(size) for size in made.values()):
        return ""
    near = min(made, key=lambda count: abs(made[count] - (seen.bytes or 0)))
    return (
        f"these numbers contradict {seen.text} seen: {near} computed tokens of the scheduler "
        f"dump would ask for {exact(made[near])}"
    )
