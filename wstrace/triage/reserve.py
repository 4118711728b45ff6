"""A reserve config from a log alone, where the bound of its sites is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import wstrace
from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.findings.codes import REFUSED_ELSEWHERE
from wstrace.reserve import config as reserve
from wstrace.vllm.limits import LIMIT_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstrace.known_sites.known import KnownSite
    from wstrace.trace.records import Limit
    from wstrace.triage.diagnose.finding import Finding
    from wstrace.triage.report import Report

_SYMPTOMS = ("over_reserved", "pointer_moved_after_capture", "unlocked_growth_oom")


def config_of(report: Report) -> reserve.ReserveConfig:
    """The config of every site whose worst case is known.

    A log does not tell the whole layout of the model: the digest stays empty, and only the
    layout numbers that are known are compared with the engine. WstraceError: no site of the
    report has a complete bound (the message names what is missing), or the log contradicts
    the numbers that a bound was computed with.
    """
    wanted = [f for f in report.findings if f.kind not in _SYMPTOMS]
    wrong = next((f for f in wanted if f.worst.contradiction), None)
    if wrong is not None:
        raise _contradicted(wrong)
    covered = [
        f for f in wanted if f.worst.bytes is not None and f.code not in REFUSED_ELSEWHERE
    ]
    if not covered:
        raise _incomplete(wanted)
    sites = {finding.where: _site(finding) for finding in covered}
    total = -(-max(site.bytes for site in sites.values()) // 256) * 256
    limits = _limits(covered, report)
    return reserve.ReserveConfig(
        made_by=f"wstrace {wstrace.__version__} triage",
        model=reserve.Model(digest="", layout=_layout(limits)),
        limits=limits,
        slots=[reserve.SlotReserve(bytes=total)],
        sites=sorted(sites.values(), key=lambda site: (-site.bytes, site.site)),
        cost=reserve.Cost(
            bytes=total, note="from a log: what profiling already counts is not known"
        ),
        not_covered=_not_covered(wanted, sites),
    )


def dumps(report: Report) -> str:
    """The config as commented YAML."""
    return reserve.dumps(config_of(report))


def _contradicted(finding: Finding) -> WstraceError:
    names = ", ".join(name.name for name in finding.site.names) if finding.site else ""
    return WstraceError(
        f"No reserve config for {finding.where}: {finding.worst.contradiction}.",
        f"Give the failing server's own numbers, per rank: {names}.",
    )


def _incomplete(findings: Sequence[Finding]) -> WstraceError:
    needs = sorted({name for finding in findings for name in finding.worst.needs})
    if needs:
        sets = " ".join(f"--set {name}=N" for name in needs)
        return WstraceError(
            "No reserve config: the bound still needs " + ", ".join(needs) + ".",
            f"Add {sets}, or --model-config config.json for the model's numbers.",
        )
    return WstraceError(
        "No reserve config: the text has no arena failure at a site with a known bound.",
        "Record a trace: wstrace run -- vllm serve ..., then wstrace reserve TRACE.",
    )


def _site(finding: Finding) -> reserve.SiteReserve:
    site, worst = finding.site, finding.worst
    assert site is not None
    assert worst.bytes is not None
    formula, drivers = _formula(site, finding)
    names = parse(formula).names - drivers.keys() - LIMIT_NAMES
    return reserve.SiteReserve(
        site=finding.where,
        grade=worst.grade or "fitted",
        bytes=worst.bytes,
        observed=finding.required_bytes or 0,
        formula=formula,
        constants={name: _number(name, site, finding) for name in sorted(names)},
        drivers=drivers,
        why=_why(site, finding),
    )


def _formula(site: KnownSite, finding: Finding) -> tuple[str, dict[str, str]]:
    """The closed worst case; where it is no maximum, one call's bytes with its drivers."""
    if site.variant.monotone or not site.request_formula:
        return site.formula, {}
    drivers = {}
    for name, limit in site.drivers.items():
        text = parse(limit)
        fixed = {n: _number(n, site, finding) for n in text.names - LIMIT_NAMES}
        drivers[name] = str(text.substitute(fixed))
    return site.request_formula, drivers


def _number(name: str, site: KnownSite, finding: Finding) -> int:
    """What the bound was computed with: a given number, else vLLM's default."""
    if name in finding.values:
        return finding.values[name]
    default = next((n.default for n in site.names if n.name == name), None)
    if default is None:
        raise WstraceError(f"No reserve config: {name} is not known.", f"Add --set {name}=N.")
    return parse(str(default)).evaluate(finding.values)


def _why(site: KnownSite, finding: Finding) -> str:
    assumed = f" Assumed: {'; '.join(finding.worst.assumed)}." if finding.worst.assumed else ""
    return f"known site {site.id}: {site.title}.{assumed}"


def _limits(findings: Sequence[Finding], report: Report) -> dict[str, Limit]:
    limits: dict[str, Limit] = {}
    for finding in findings:
        limits |= {n: value for n, value in finding.values.items() if n in LIMIT_NAMES}
    told = {name: value for name, value in report.config.items() if name in LIMIT_NAMES}
    return dict(sorted({**told, **limits}.items()))


def _layout(limits: dict[str, Limit]) -> dict[str, Limit]:
    """The layout's numbers. A log's words (`auto`, `half`) need not be the engine's."""
    known = reserve.layout(limits)
    return {name: value for name, value in known.items() if type(value) is int}


def _not_covered(
    findings: Sequence[Finding], sites: dict[str, reserve.SiteReserve]
) -> list[reserve.NotCovered]:
    left = {f.where: f for f in findings if f.where not in sites}
    return [
        reserve.NotCovered(
            site=where,
            why=finding.why
            if finding.code in REFUSED_ELSEWHERE
            else f"its bound needs {', '.join(finding.worst.needs) or 'a trace'}",
            what_helps="wstrace run, then wstrace reserve",
        )
        for where, finding in left.items()
    ]
