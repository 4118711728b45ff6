"""The ways to a bound of one site: the worst case, how sure it is, and why no surer.

The ways are tried in order, each exact on every observed request or not taken: a known
site's rule, the formula that the recorder read from the source, the rule of a base class, and
inference. What is left is the largest request seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wstrace.bounds.bound import Bound, lever_of
from wstrace.bounds.by_fit import by_fit
from wstrace.bounds.by_rule import by_base, by_rule
from wstrace.bounds.by_source import by_source
from wstrace.bounds.evidence import Refusal, Site
from wstrace.trace.records import Limit, Request

_WAYS: tuple[Callable[[Site], Bound | Refusal], ...] = (by_rule, by_source, by_base, by_fit)


def bound_site(
    requests: Sequence[Request],
    limits: Mapping[str, Limit],
    *,
    file: str,
    function: str,
    vllm_version: str | None = None,
) -> Bound:
    """The bound of the site `file`:`function` from all its requests, warm-up and serving.

    `bytes` is None only where there is no request and no rule with all its numbers.
    """
    site = Site(file, function, tuple(requests), dict(limits), vllm_version)
    refusals: list[Refusal] = []
    for way in _WAYS:
        found = way(site)
        if isinstance(found, Bound):
            if (found.bytes or 0) >= site.observed:
                return _told(found, site, refusals)
            found = _less_than_seen(found)
        refusals.append(found)
    return _observed(site, refusals)


def _less_than_seen(bound: Bound) -> Refusal:
    why = f"{bound.formula} gives less than was seen"
    refuted = f"the rule {bound.known_site}: {why}" if bound.known_site else ""
    return Refusal(why, known_site=bound.known_site, refuted=refuted)


def _told(bound: Bound, site: Site, refusals: Sequence[Refusal]) -> Bound:
    """The bound with what was seen, and why the ways before it were not taken."""
    known = next((r.known_site for r in refusals if r.known_site), None)
    return replace(
        bound,
        why="; ".join([bound.why, *_spoken(refusals)]),
        lever=bound.lever or lever_of(bound.formula or "0"),
        known_site=bound.known_site or known,
        observed=site.observed,
        refuted=_refuted(refusals),
    )


def _observed(site: Site, refusals: Sequence[Refusal]) -> Bound:
    known = next((r for r in refusals if r.known_site), Refusal(""))
    seen = "the largest request seen; a larger one can still fail"
    return Bound(
        bytes=site.observed if site.requests else None,
        grade="observed",
        why="; ".join([seen if site.requests else "no request was seen", *_spoken(refusals)]),
        needs=tuple(dict.fromkeys(name for r in refusals for name in r.needs)),
        lever=known.lever,
        known_site=known.known_site,
        observed=site.observed,
        refuted=_refuted(refusals),
    )


def _refuted(refusals: Sequence[Refusal]) -> str:
    """What a trace says against a rule; the first of several."""
    return next((r.refuted for r in refusals if r.refuted), "")


def _spoken(refusals: Sequence[Refusal]) -> list[str]:
    return [refusal.why for refusal in refusals if refusal.why]
