"""What a site can ever need: the worst case, how sure it is, and why no surer.

Three ways are tried in order, each exact on every observed request or not taken: a known
site's rule, the formula that the recorder read from the source, and inference. What is left
is the largest request seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wstrace.bounds.evidence import Refusal, Site
from wstrace.bounds.fit import by_fit
from wstrace.bounds.rules import by_rule
from wstrace.bounds.source import by_source
from wstrace.bounds.worst import Worst, lever_of
from wstrace.reserve.schema import Grade
from wstrace.trace.records import Ask, Limit


@dataclass(frozen=True)
class Bound:
    """The worst case of one site, in bytes.

    `formula` is over limit names and `constants`, and gives `bytes`; `driver_formula` is one
    request's bytes over `drivers`, each with its limit expression, `lowest` value and `joint`
    limits (<= 0). `at` is where the worst case lies. `why` says what stands behind the grade,
    `needs` which limits are missing. `observed` is the largest request seen. `closed`:
    `formula` holds under other limits too; else `driver_formula` must be maximised again.
    """

    bytes: int | None
    grade: Grade
    formula: str | None = None
    driver_formula: str | None = None
    constants: dict[str, int] = field(default_factory=dict)
    drivers: dict[str, str] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)
    joint: tuple[str, ...] = ()
    at: dict[str, int] = field(default_factory=dict)
    why: str = ""
    needs: tuple[str, ...] = ()
    lever: dict[str, str] | None = None
    known_site: str | None = None
    observed: int = 0
    closed: bool = False


_WAYS: tuple[tuple[Grade, Callable[[Site], Worst | Refusal]], ...] = (
    ("proved", by_rule),
    ("proved", by_source),
    ("fitted", by_fit),
)


def bound_site(
    asks: Sequence[Ask],
    limits: Mapping[str, Limit],
    *,
    file: str,
    function: str,
    vllm_version: str | None = None,
) -> Bound:
    """The bound of the site `file`:`function` from all its requests, warm-up and serving.

    `bytes` is None only where there is no request and no rule with all its numbers.
    """
    site = Site(file, function, tuple(asks), dict(limits), vllm_version)
    refusals: list[Refusal] = []
    for grade, way in _WAYS:
        found = way(site)
        if isinstance(found, Worst):
            if found.bytes >= site.observed:
                return _bound(found, grade, site, refusals)
            found = Refusal(f"{found.formula} gives less than was seen")
        refusals.append(found)
    return _observed(site, refusals)


def _bound(worst: Worst, grade: Grade, site: Site, refusals: Sequence[Refusal]) -> Bound:
    bound = Bound(
        bytes=worst.bytes,
        grade=grade,
        formula=worst.formula,
        driver_formula=worst.driver_formula,
        constants=worst.constants,
        drivers=worst.drivers,
        lowest=worst.lowest,
        joint=worst.joint,
        at=worst.at,
        why="; ".join([worst.why, *_spoken(refusals)]),
        lever=worst.lever or lever_of(worst.formula),
        known_site=worst.known_site,
        observed=site.observed,
        closed=worst.closed,
    )
    known = next((r.known_site for r in refusals if r.known_site), None)
    return bound if bound.known_site else replace(bound, known_site=known)


def _observed(site: Site, refusals: Sequence[Refusal]) -> Bound:
    known = next((r for r in refusals if r.known_site), Refusal(""))
    seen = "the largest request seen; a larger one can still fail"
    return Bound(
        bytes=site.observed if site.asks else None,
        grade="observed",
        why="; ".join([seen if site.asks else "no request was seen", *_spoken(refusals)]),
        needs=tuple(dict.fromkeys(name for r in refusals for name in r.needs)),
        lever=known.lever,
        known_site=known.known_site,
        observed=site.observed,
    )


def _spoken(refusals: Sequence[Refusal]) -> list[str]:
    return [refusal.why for refusal in refusals if refusal.why]
