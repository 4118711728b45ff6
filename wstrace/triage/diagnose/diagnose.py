"""From the facts of one text to its findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wstrace.triage.diagnose import bounding, contradiction, sizes, symptoms
from wstrace.triage.diagnose.classify import classify
from wstrace.triage.diagnose.finding import Finding, Step
from wstrace.triage.diagnose.incidents import incidents
from wstrace.triage.diagnose.numbers import Given, values
from wstrace.triage.extract import frames as tracebacks
from wstrace.versions import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.extract.engine_settings import Settings, Value
    from wstrace.triage.extract.facts import Amount, Refusal, StepDump, Text

STEP_REACH = 5000


@dataclass(frozen=True)
class Diagnosis:
    """What one text gives: findings in order, the configuration, talk that was skipped."""

    path: str
    findings: list[Finding]
    config: dict[str, Value]
    skipped: int
    notes: list[str]


def diagnose(text: Text, settings: Settings, given: Given) -> Diagnosis:
    """The findings of one text."""
    refused = incidents(text.refusals)
    findings = contradiction.spread(
        _finding(refusal, text, settings, given) for refusal in refused
    )
    findings += symptoms.findings(text, settings, given, findings)
    findings.sort(key=lambda finding: finding.at)
    config = settings.resolve(findings[0].at if findings else None)
    notes = [*text.notes, *(_taken_for(_version(config)) if findings else ())]
    return Diagnosis(text.path, findings, config, text.mentions, notes)


def _taken_for(version: str | None) -> list[str]:
    """Which release the rules were read for, where the text's own was not checked."""
    told = release_of(version).taken_for if version else ""
    return [told] if told else []


def _finding(refusal: Refusal, text: Text, settings: Settings, given: Given) -> Finding:
    config = settings.resolve(refusal.origin.line)
    version = _version(config)
    numbers = values(config, given, settings.model())
    steps = _near(refusal, text.steps)
    step = _nearest(refusal, steps)
    module = _module(refusal)
    site = bounding.choose_site(refusal, module, version, numbers, step)
    factor = None
    if site and refusal.required and refusal.required.bytes is not None:
        factor = sizes.product(site, numbers, refusal.required, step)
    phase = tracebacks.phase(refusal.frames) or ("serving" if step else None)
    verdict = classify(refusal, site, phase, text, config)
    worst = bounding.worst_case(site, numbers, factor, started=bool(text.kv))
    worst = contradiction.checked(worst, site, numbers, refusal.required, steps)
    finding = Finding(
        verdict.code,
        verdict.kind,
        text.path,
        refusal.origin.line,
        file=refusal.file,
        function=refusal.function,
        line=refusal.line,
        module=module,
        ranks=refusal.origin.ranks,
        slot=verdict.slot,
        layer=refusal.layer,
        name=refusal.name,
        version=version,
        site=site,
        worst=worst,
        fixed_in=(site.first_fixed or None) if site else None,
        confidence=verdict.confidence,
        why=verdict.why,
        phase=phase,
        step=_step(step),
        times=refusal.times,
        values=numbers,
        given=given,
    )
    pinned = None
    if not worst.contradiction:
        pinned = _exact(refusal, site, numbers, step, factor)
    return _with_sizes(finding, refusal, text, pinned)


def _exact(
    refusal: Refusal,
    site: KnownSite | None,
    numbers: Mapping[str, int],
    step: StepDump | None,
    factor: sizes.Product | None,
) -> sizes.Exact | None:
    if site is None or refusal.required is None or refusal.required.bytes is None:
        return None
    if factor is not None and factor.bytes is not None:
        return sizes.Exact(factor.bytes, factor.why)
    return sizes.exact(site, numbers, refusal.required, step)


def _with_sizes(
    finding: Finding, refusal: Refusal, text: Text, pinned: sizes.Exact | None
) -> Finding:
    required, current = refusal.required, refusal.current
    if required is not None:
        finding = replace(
            finding,
            required_text=required.text,
            required_bytes=pinned.bytes if pinned else required.bytes,
            required_exact=pinned is not None,
        )
    if pinned is not None:
        told = f"exactly {pinned.bytes} bytes: {pinned.why}"
        finding = replace(finding, evidence=(*finding.evidence, told))
    if current is not None:
        locked = _locked_size(current, refusal, text)
        finding = replace(
            finding,
            current_text=current.text,
            current_bytes=current.bytes if locked is None else locked,
            current_exact=locked is not None,
        )
    return finding


def _locked_size(current: Amount, refusal: Refusal, text: Text) -> int | None:
    """The exact arena size, where a debug line of the lock prints one that fits."""
    sizes_seen = {
        size
        for lock in text.locks
        if lock.origin.line < refusal.origin.line
        for size in lock.sizes
        if current.fits(size)
    }
    return sizes_seen.pop() if len(sizes_seen) == 1 else None


def _version(config: Mapping[str, Value]) -> str | None:
    version = config.get("vllm_version")
    return version if isinstance(version, str) else None


def _module(refusal: Refusal) -> str | None:
    """The path of the site's file below the vllm package, from the traceback."""
    for frame in reversed(refusal.frames):
        if tracebacks.base(frame.path) == refusal.file:
            return tracebacks.module_path(frame.path)
    return None


def _near(refusal: Refusal, steps: Sequence[StepDump]) -> list[StepDump]:
    """The scheduler dumps near the failure: the engine prints one before or after it."""
    line = refusal.origin.line
    return [step for step in steps if abs(step.origin.line - line) <= STEP_REACH]


def _nearest(refusal: Refusal, steps: Sequence[StepDump]) -> StepDump | None:
    line = refusal.origin.line
    return min(steps, key=lambda step: abs(step.origin.line - line), default=None)


def _step(step: StepDump | None) -> Step | None:
    if step is None:
        return None
    return Step(step.total_tokens, tuple(zip(step.scheduled, step.computed, strict=False)))
