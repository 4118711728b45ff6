"""The reserve that a text calls for: its sites with a known worst case, given to the planner.

A text does not tell the whole layout of the model: the digest stays empty, and only the
layout's numbers that are known are compared with the engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from wstrace.bounds.by_rule import with_defaults
from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.findings.codes import REFUSED_ELSEWHERE
from wstrace.known_sites.given import COMMAND, Caller
from wstrace.planning.plan import Engine, ReservePlan, SiteBound, Wishes, plan
from wstrace.reserve.schema import NotCovered
from wstrace.vllm.limits import LIMIT_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstrace.bounds.bound import Bound
    from wstrace.findings.finding import Finding, Sibling
    from wstrace.known_sites.known import KnownSite
    from wstrace.reserve.schema import ReserveConfig
    from wstrace.trace.records import Limit
    from wstrace.triage.report import Report

_SYMPTOMS: Final = ("over_reserved", "pointer_moved_after_capture", "unlocked_growth_oom")


def plan_report(report: Report, caller: Caller = COMMAND) -> ReservePlan:
    """The plan for every site of the report whose worst case is known.

    WstraceError: no site has one (the message names what is missing), or the text contradicts
    the numbers that a bound was computed with.
    """
    wanted = [f for f in report.findings if f.log and f.log.kind not in _SYMPTOMS]
    wrong = next((f for f in wanted if f.bound and f.bound.contradiction), None)
    if wrong is not None:
        raise _contradicted(wrong)
    covered = [f for f in wanted if _is_bounded(f)]
    if not covered:
        raise _incomplete(wanted, caller)
    bounds = _bounds(covered)
    beside = _siblings(wanted, {b.name for b in bounds})
    bounds += [_sibling_bound(s, f) for s, f in beside if s.bound.bytes is not None]
    engine = Engine(limits=_limits(covered, report), complete=False)
    left = _not_covered(wanted, {b.name for b in bounds})
    left += [_sibling_left(s) for s, _ in beside if s.bound.bytes is None]
    made = plan(bounds, engine, Wishes(caller=caller), left)
    return replace(made, config=_of_text(made.config))


def _is_bounded(finding: Finding) -> bool:
    known = finding.bound is not None and finding.bound.bytes is not None
    return known and finding.code not in REFUSED_ELSEWHERE


def _bounds(covered: Sequence[Finding]) -> list[SiteBound]:
    """One a site: of several ranks the largest bound and the largest request."""
    found: dict[str, SiteBound] = {}
    for finding in covered:
        assert finding.bound is not None
        asked = finding.serving_bytes or 0
        bound = replace(finding.bound, constants=_constants(finding))
        known = found.get(finding.where)
        if known is None:
            known = SiteBound(finding.file, finding.function, bound, asked)
        elif (finding.bound.bytes or 0) > (known.bound.bytes or 0):
            known = replace(known, bound=bound)
        found[finding.where] = replace(known, largest=max(known.largest, asked))
    return list(found.values())


def _siblings(wanted: Sequence[Finding], known: set[str]) -> list[tuple[Sibling, Finding]]:
    """The sites that fail next and that the text itself does not speak of, each once."""
    spoken = known | {finding.where for finding in wanted}
    found: dict[str, tuple[Sibling, Finding]] = {}
    for finding in wanted:
        for sibling in finding.log.siblings if finding.log else ():
            known_one = found.get(sibling.site)
            if sibling.site in spoken:
                continue
            if known_one is None or _bytes(sibling) > _bytes(known_one[0]):
                found[sibling.site] = sibling, finding
    return list(found.values())


def _bytes(sibling: Sibling) -> int:
    return sibling.bound.bytes or 0


def _sibling_bound(sibling: Sibling, finding: Finding) -> SiteBound:
    log = finding.log
    assert log is not None
    constants = _numbers_of(sibling.rule, sibling.bound, log.numbers)
    bound = replace(sibling.bound, constants=constants, why=f"fails next: {sibling.why}")
    return SiteBound(sibling.file, sibling.function, bound, 0)


def _sibling_left(sibling: Sibling) -> NotCovered:
    needs = sibling.bound.needs
    why = sibling.bound.contradiction or f"its bound needs {', '.join(needs)}"
    sets = " ".join(f"--set {name}=N" for name in needs)
    helps = f"wstrace triage ... {sets}" if needs else "wstrace run, then wstrace reserve"
    return NotCovered(site=sibling.site, why=f"{sibling.why}; {why}", what_helps=helps)


def _constants(finding: Finding) -> dict[str, int]:
    """Every number that the bound was computed with: what a text lacks is in no limit."""
    bound, log = finding.bound, finding.log
    assert bound is not None
    assert log is not None
    assert log.rule is not None
    return _numbers_of(log.rule, bound, log.numbers)


def _numbers_of(rule: KnownSite, bound: Bound, known: Mapping[str, int]) -> dict[str, int]:
    numbers = with_defaults(rule, {**known, **bound.constants})
    used = parse(rule.formula).names.union(*(parse(text).names for text in rule.requests))
    return {name: numbers[name] for name in sorted(used & numbers.keys())}


def _limits(findings: Sequence[Finding], report: Report) -> dict[str, Limit]:
    limits: dict[str, Limit] = {}
    for finding in findings:
        numbers = finding.log.numbers if finding.log else {}
        limits |= {n: value for n, value in numbers.items() if n in LIMIT_NAMES}
    told = {name: value for name, value in report.config.items() if name in LIMIT_NAMES}
    return dict(sorted({**told, **limits}.items()))


def _of_text(config: ReserveConfig) -> ReserveConfig:
    """The planner's config without limits in constants: the live engine has its own, and a
    printed size may have given only a product of them."""
    sites = [
        msgspec.structs.replace(
            site, constants={n: v for n, v in site.constants.items() if n not in LIMIT_NAMES}
        )
        for site in config.sites
    ]
    return msgspec.structs.replace(config, sites=sites)


def _contradicted(finding: Finding) -> WstraceError:
    rule = finding.log.rule if finding.log else None
    names = ", ".join(name.name for name in rule.names) if rule else ""
    told = finding.bound.contradiction if finding.bound else ""
    return WstraceError(
        f"No reserve config for {finding.where}: {told}.",
        f"Give the failing server's own numbers, per rank: {names}.",
    )


def _incomplete(findings: Sequence[Finding], caller: Caller) -> WstraceError:
    needs = sorted({name for f in findings if f.bound for name in f.bound.needs})
    if needs:
        config = ", or --model-config config.json for the model's numbers"
        return WstraceError(
            "No reserve config: the bound still needs " + ", ".join(needs) + ".",
            f"Add {caller.missing(needs)}{config if caller is COMMAND else ''}.",
        )
    return WstraceError(
        "No reserve config: the text has no arena failure at a site with a known bound.",
        "Record a trace: wstrace run -- vllm serve ..., then wstrace reserve TRACE.",
    )


def _not_covered(findings: Sequence[Finding], sites: set[str]) -> list[NotCovered]:
    left = {f.where: f for f in findings if f.where not in sites}
    helps = "wstrace run, then wstrace reserve"
    return [
        NotCovered(site=where, why=_why(finding), what_helps=helps)
        for where, finding in left.items()
    ]


def _why(finding: Finding) -> str:
    if finding.code in REFUSED_ELSEWHERE and finding.log:
        return finding.log.why
    needs = finding.bound.needs if finding.bound else ()
    return f"its bound needs {', '.join(needs) or 'a trace'}"
