"""From the facts of one text to its findings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wstrace.findings.finding import UNNUMBERED, Finding, FromLog
from wstrace.known_sites import known
from wstrace.trace.records import Phase, ScheduledRequest, Step
from wstrace.triage.diagnose import bounding, life, releases, sizes, symptoms
from wstrace.triage.diagnose.advice import V2_LOCKS_FROM, told
from wstrace.triage.diagnose.classify import Verdict, classify
from wstrace.triage.diagnose.incidents import incidents
from wstrace.triage.diagnose.numbers import Given, refuse_contradicted, values, version_of
from wstrace.triage.diagnose.relatives import NotTheArena, relatives
from wstrace.triage.diagnose.siblings import siblings
from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.retold import files_of
from wstrace.triage.ingest.ranks import NOWHERE
from wstrace.versions import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstrace.bounds.bound import Bound
    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.diagnose.what_worked import Worked
    from wstrace.triage.extract.engine_settings import Settings, Value
    from wstrace.triage.extract.facts import Refusal, StepDump, Text

STEP_REACH = 5000
_SHOWN = 80


@dataclass(frozen=True)
class Diagnosis:
    """What one text gives: findings in order, the configuration, talk that was skipped."""

    path: str
    findings: list[Finding]
    config: dict[str, Value]
    skipped: int
    notes: list[str]
    relatives: list[NotTheArena] = field(default_factory=list)
    worked: Worked | None = None


def diagnose(text: Text, settings: Settings, given: Given) -> Diagnosis:
    """The findings of one text. WstraceError: it contradicts a number that was given."""
    refuse_contradicted(settings, given)
    refused = incidents(text.refusals)
    findings = bounding.spread(_finding(refusal, text, settings, given) for refusal in refused)
    findings += symptoms.findings(text, settings, given, findings)
    beside = relatives(text, settings, given, findings)
    findings = [_placed(finding, text.part, settings) for finding in findings]
    findings = sorted((told(finding, given) for finding in findings), key=_line)
    config = settings.resolve(_line(findings[0]) if findings else None)
    notes = [*text.notes, *_several_engines(settings)]
    if findings:
        notes += [*_unread(settings, given), *_taken_for(version_of(config))]
    return Diagnosis(text.path, findings, config, text.mentions, notes, beside)


def _several_engines(settings: Settings) -> list[str]:
    """A word on a text of several engines: which of them a line is of is not known for sure."""
    kinds = (("models", "model"), ("versions of vLLM", "vllm_version"))
    values = [(what, settings.printed(name)) for what, name in kinds]
    several = [f"{len(v)} {what} ({_shown(v)})" for what, v in values if len(v) > 1]
    if not several:
        return []
    return [
        f"this text is of engines of {' and '.join(several)}: settings and findings are "
        "not told apart; give the log of each alone"
    ]


def _shown(values: Sequence[str]) -> str:
    return ", ".join(values[:4]) + (" ..." if len(values) > 4 else "")


def _unread(settings: Settings, given: Given) -> list[str]:
    return [
        f"{said[:_SHOWN]} in the text is no number that vLLM reads: give it with "
        f"{given.option} {name}=N"
        for name, said in settings.unread().items()
        if name not in given.numbers
    ]


def _placed(finding: Finding, part: str, settings: Settings) -> Finding:
    """The finding with its part of the text, and the model of the engine that is shown."""
    if finding.log is None:
        return finding
    model = settings.resolve(finding.log.at).get("model")
    log = replace(finding.log, part=part, model=str(model) if model else None)
    return replace(finding, log=log)


def _taken_for(version: str | None) -> list[str]:
    """Which release the rules were read for, where the text's own was not checked."""
    taken = release_of(version).taken_for if version else ""
    return [taken] if taken else []


def _line(finding: Finding) -> int:
    return finding.log.at if finding.log else 0


@dataclass(frozen=True)
class _Scene:
    """A refusal, and what its text shows around it: `steps` are the scheduler's dumps near it,
    `step` the nearest."""

    refusal: Refusal
    text: Text
    config: dict[str, Value]
    version: str | None
    module: str | None
    steps: list[StepDump]
    step: StepDump | None


@dataclass(frozen=True)
class _Ruled:
    """The rule of a refusal's site with the failing server's numbers, those on which commands
    disagree, and what the printed size fixes."""

    rule: bounding.Rule
    numbers: dict[str, int]
    rivals: dict[str, set[int]]
    deduced: sizes.Deduced | None

    @property
    def site(self) -> KnownSite | None:
        return self.rule.site


def _finding(refusal: Refusal, text: Text, settings: Settings, given: Given) -> Finding:
    scene = _scene(refusal, text, settings)
    ruled = _ruled(scene, settings, given)
    phase = tracebacks.phase(refusal.frames) or _serving(refusal, scene.step, text)
    verdict = classify(refusal, ruled.site, phase, text, scene.config)
    bound = _bound(scene, ruled)
    pinned = None
    if bound is not None and not bound.contradiction:
        pinned = _exact(refusal, ruled.site, ruled.numbers, scene.step, ruled.deduced)
    finding = Finding(
        verdict.code,
        verdict.severity,
        "",
        file=refusal.file or "",
        function=refusal.function or "",
        ranks=(refusal.origin.ranks,) if refusal.origin.ranks != NOWHERE else (),
        layers=(refusal.layer,) if refusal.layer else (),
        bound=bound,
        phase=phase,
        step=_step(scene.step),
    )
    finding = _with_sizes(finding, _log(scene, ruled, verdict), refusal, text, pinned)
    assert finding.log is not None
    return replace(finding, log=releases.with_releases(finding.log, ruled.rule.fits))


def _scene(refusal: Refusal, text: Text, settings: Settings) -> _Scene:
    config = settings.resolve(refusal.origin.line)
    steps = _near(refusal, text.steps)
    return _Scene(
        refusal,
        text,
        config,
        version=version_of(config),
        module=_module(refusal),
        steps=steps,
        step=_nearest(refusal, steps),
    )


def _ruled(scene: _Scene, settings: Settings, given: Given) -> _Ruled:
    """WstraceError: what was given contradicts the printed size."""
    refusal, version, required = scene.refusal, scene.version, scene.refusal.required
    numbers = values(scene.config, given, settings.model())
    named = (scene.module, refusal.file)
    paths = named if refusal.file else _files(refusal.function, version)
    rule = bounding.choose_rule(paths, refusal.function, version, numbers, required, scene.step)
    site = rule.site
    rivals = bounding.of_site(settings.rivals(refusal.origin.line), site)
    if site and rivals:
        chosen = bounding.choices(scene.config, rivals)
        every = [values({**scene.config, **one}, given, settings.model()) for one in chosen]
        numbers = bounding.largest_of(every, site)
    deduced = None
    if site and required and required.bytes is not None:
        deduced = sizes.deduced(site, numbers, required, scene.step)
        bounding.refuse_unfitting(site, numbers, given, required, scene.steps)
    return _Ruled(rule, numbers, rivals, deduced)


def _bound(scene: _Scene, ruled: _Ruled) -> Bound | None:
    """The site's bound, without bytes where the printed size contradicts it."""
    required, start_up = scene.refusal.required, bool(scene.text.kv)
    bound = bounding.site_bound(ruled.site, ruled.numbers, ruled.deduced, start_up=start_up)
    bound = bounding.checked(bound, ruled.site, ruled.numbers, required, scene.steps)
    return bounding.of_release(bound, ruled.rule, scene.version, required)


def _log(scene: _Scene, ruled: _Ruled, verdict: Verdict) -> FromLog:
    refusal, text = scene.refusal, scene.text
    evidence = (_impossible(text, scene.config), *_disagree(ruled.rivals))
    return FromLog(
        verdict.kind,
        text.path,
        refusal.origin.line,
        line=refusal.line,
        module=scene.module,
        name=refusal.name,
        version=scene.version,
        rule=ruled.site,
        confidence=verdict.confidence,
        why=verdict.why,
        evidence=tuple(filter(None, evidence)),
        times=refusal.times,
        numbers=ruled.numbers,
        siblings=siblings(ruled.site, scene.version, ruled.numbers),
    )


def _serving(refusal: Refusal, step: StepDump | None, text: Text) -> Phase | None:
    """Without a stack only serving is certain: a dump of a step, or the server's own lines.
    An excerpt may leave out what came between a start-up line and the failure."""
    shown = life.phase_of(text, refusal.origin, ())
    return "serving" if step is not None or shown == "serving" else None


def _impossible(text: Text, config: Mapping[str, Value]) -> str:
    """Why nothing can have locked the arena under these settings; "" where it can.

    vLLM 0.13.0 to 0.33.0 lock in capture_model, which eager mode does not call, and the V2
    runner before 0.30 locks nowhere. Elastic EP locks always.
    """
    version = version_of(config)
    if config.get("enforce_eager") is True:
        return "enforce_eager=True locks nothing: that setting is of another run"
    if text.v2_runner and version and not release_of(version).has(V2_LOCKS_FROM):
        return f"the V2 runner of {version} locks nothing: version or runner is of another run"
    return ""


def _disagree(rivals: Mapping[str, set[int]]) -> list[str]:
    return [
        f"commands disagree on {name} ({', '.join(map(str, sorted(values)))}): "
        "the numbers with the largest need count"
        for name, values in rivals.items()
    ]


def _exact(
    refusal: Refusal,
    site: KnownSite | None,
    numbers: Mapping[str, int],
    step: StepDump | None,
    deduced: sizes.Deduced | None,
) -> sizes.Exact | None:
    if site is None or refusal.required is None or refusal.required.bytes is None:
        return None
    if deduced is not None and deduced.bytes is not None:
        return sizes.Exact(deduced.bytes, deduced.why or deduced.blocks)
    return sizes.exact_size(site, numbers, refusal.required, step)


def _with_sizes(
    finding: Finding, log: FromLog, refusal: Refusal, text: Text, pinned: sizes.Exact | None
) -> Finding:
    required, current = refusal.required, refusal.current
    asked = required.bytes if required else None
    had = current.bytes if current else None
    if required is not None:
        log = replace(log, required_text=required.text, required_exact=pinned is not None)
    if pinned is not None:
        asked = pinned.bytes
        exactly = f"exactly {asked} bytes: {pinned.why}"
        log = replace(log, evidence=(exactly, *log.evidence))
    if current is not None:
        earlier = (lock for lock in text.locks if lock.origin.at < refusal.origin.at)
        locked = sizes.locked(current, earlier)
        had = had if locked is None else locked
        log = replace(log, current_text=current.text, current_exact=locked is not None)
    return replace(finding, serving_bytes=asked, arena_bytes=had, log=log)


def _module(refusal: Refusal) -> str | None:
    """The path of the site's file below the vllm package, from the traceback."""
    for frame in reversed(refusal.frames):
        if tracebacks.base(frame.path) == refusal.file:
            return tracebacks.module_path(frame.path)
    return None


def _files(function: str | None, version: str | None) -> tuple[str, ...]:
    """A file of a function that a text names alone, where all such files are one site's: it
    has moved from release to release."""
    files = files_of(function) if function else ()
    found = [known.match(file, function or "", version) for file in files]
    return files[:1] if len({site and site.id for site in found}) == 1 else ()


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
    pairs = zip(step.scheduled, step.computed, strict=False)
    requests = [ScheduledRequest(scheduled, computed) for scheduled, computed in pairs]
    total = step.total_tokens or sum(request.scheduled for request in requests)
    return Step(UNNUMBERED, "real", total, len(requests), step.draft_tokens, requests)
