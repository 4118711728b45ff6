"""A printed size held against each release's formula: which releases ask for just that."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from wstrace.bounds.by_rule import rule_bound
from wstrace.triage.diagnose import sizes
from wstrace.units import exact
from wstrace.versions import CHECKED_WITH, release_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstrace.bounds.bound import Bound
    from wstrace.findings.finding import FromLog, Span
    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.extract.facts import PrintedSize, StepDump


def spans(site: KnownSite) -> list[Span]:
    """The releases of each formula of a rule: since, and up to which not."""
    since = [variant.since for variant in site.variants]
    return list(pairwise([*since, ""]))


def fitting(
    site: KnownSite,
    values: Mapping[str, int],
    printed: PrintedSize | None,
    step: StepDump | None,
) -> tuple[list[Span], Mapping[str, int]]:
    """The spans whose formula makes `printed` without a free number, and a width that the size
    fixes. None where all do, or where one cannot be told for want of a number.

    A size that follows a free driver fits nearly always, and says nothing of the release.
    """
    if printed is None or printed.bytes is None:
        return [], {}
    found = {s: sizes.fixed(site.at(s[0]), values, printed, step) for s in spans(site)}
    made = {span: way for span, way in found.items() if isinstance(way, sizes.Made)}
    if True in found.values() or not made or len(made) == len(found) > 1:
        return [], {}
    solved = next(iter(made.values())).solved if len(made) == 1 else {}
    return (list(made) if len(found) > 1 else []), solved


def held(site: KnownSite, version: str | None, fits: Sequence[Span]) -> KnownSite:
    """The rule with the formula that makes the size, where the text's own release is unknown
    or its formula does not."""
    if not fits:
        return site
    own = next((span for span in fits if version and _within(version, span)), None)
    return site.at(version if own else fits[-1][0])


def _within(version: str, span: Span) -> bool:
    release = release_of(version)
    return release.has(span[0]) and not (span[1] and release.has(span[1]))


def contradicted(fits: Sequence[Span], version: str | None) -> bool:
    """Whether the size fits some releases, and the text's own is none of them."""
    return bool(fits and version) and not any(_within(version or "", span) for span in fits)


def told(fits: Sequence[Span], version: str | None, printed: str) -> str:
    """The fitting releases in a sentence; "" where none or all fit."""
    if not fits:
        return ""
    named = " or ".join(_named(span) for span in fits)
    if contradicted(fits, version):
        return f"{printed} is what {named} asks for, not {version}"
    return f"{printed} is what {named} asks for"


def _named(span: Span) -> str:
    since, until = span
    return f"vLLM {since} up to, not including, {until}" if until else f"vLLM from {since}"


def is_fixed(site: KnownSite, version: str | None, fits: Sequence[Span]) -> bool:
    """Whether the release has the rule's fix, by the text or, without one, by the size."""
    if not site.first_fixed:
        return False
    if fits:
        return all(release_of(since).has_fix(site.first_fixed) for since, _ in fits)
    return bool(version) and release_of(version).has_fix(site.first_fixed)


def need_under(log: FromLog, bound: Bound | None, advised: str) -> str:
    """What the site can need under the release advised, and under the newest where that
    differs; "" where numbers are missing."""
    rule = log.rule
    if rule is None or bound is None:
        return ""
    numbers = {**log.numbers, **bound.constants}
    found = {v: rule_bound(rule.at(v), numbers).bytes for v in (advised, CHECKED_WITH)}
    first, newest = found[advised], found[CHECKED_WITH]
    if first is None:
        return ""
    later = f", {exact(newest)} in {CHECKED_WITH}" if newest not in (None, first) else ""
    cover = rule.cover(advised)
    itself = " vLLM reserves it itself" if cover and cover.covers == "full" else ""
    uncounted = ", after KV sizing" if itself and cover and not cover.counted else ""
    return f"there at most {exact(first)}{later}" + (itself and f";{itself}{uncounted}")


def with_releases(log: FromLog, fits: Sequence[Span]) -> FromLog:
    """The finding's text part with the fitting releases and their sentence as evidence."""
    sentence = told(fits, log.version, log.required_text or "")
    evidence = (*log.evidence, sentence) if sentence else log.evidence
    return replace(log, fits=tuple(fits), evidence=evidence)
