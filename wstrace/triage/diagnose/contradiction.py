"""Numbers that cannot be those of the failing server: the log itself shows more, or other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wstrace.triage.diagnose import sizes
from wstrace.units import exact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.diagnose.finding import Finding, Worst
    from wstrace.triage.extract.facts import Amount, StepDump

_DRIVER: Final = "num_computed_tokens"


def checked(
    worst: Worst,
    site: KnownSite | None,
    numbers: Mapping[str, int],
    seen: Amount | None,
    steps: Sequence[StepDump],
) -> Worst:
    """`worst` without bytes and grade where the printed size cannot follow from `numbers`.

    A worst case must be no less than what was asked for, and the cached tokens of a
    scheduler dump must give the printed size to its last digit.
    """
    if site is None or seen is None or seen.bytes is None:
        return worst
    told = _too_small(worst, seen) or _another_size(site, numbers, seen, steps)
    if not told:
        return worst
    return replace(worst, bytes=None, grade=None, needs=(), contradiction=told)


def spread(findings: Iterable[Finding]) -> list[Finding]:
    """One contradicted rank of a site takes the bound from all: they share the numbers."""
    found = list(findings)
    told = {f.where: f.worst.contradiction for f in found if f.worst.contradiction}
    return [
        replace(f, worst=replace(f.worst, bytes=None, grade=None, contradiction=told[f.where]))
        if f.where in told and f.worst.bytes is not None
        else f
        for f in found
    ]


def _too_small(worst: Worst, seen: Amount) -> str:
    if worst.bytes is None or worst.bytes >= seen.low:
        return ""
    return (
        f"these numbers contradict {seen.text} seen: by them the site needs at most "
        f"{exact(worst.bytes)}"
    )


def _another_size(
    site: KnownSite, numbers: Mapping[str, int], seen: Amount, steps: Sequence[StepDump]
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
