"""What the arena does without vLLM's message: a finding only where the text has evidence.

An illegal memory access or a lack of memory has a hundred causes. It is counted here only
beside a growth of the arena that the text shows, or in a setting known to allow one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wstrace.findings.codes import Severity
from wstrace.findings.finding import Confidence, Finding, FromLog
from wstrace.known_sites import known
from wstrace.trace.records import Phase, Ranks, Slot
from wstrace.triage.diagnose import bounding, life, reasons, releases, sizes
from wstrace.triage.diagnose.advice import V2_LOCKS_FROM
from wstrace.triage.diagnose.classify import Verdict
from wstrace.triage.diagnose.numbers import values, version_of
from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.facts import printed_size
from wstrace.triage.ingest.ranks import NOWHERE
from wstrace.versions import release_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wstrace.triage.diagnose.numbers import Given
    from wstrace.triage.extract.engine_settings import Settings
    from wstrace.triage.extract.facts import Fault, Frame, Resize, Text

# vLLM 0.24.0: dcp_alltoall.py no longer asks the manager, in 0.23.0 it does.
DCP_WARMED_FROM: Final = "0.24.0"
_MOVED: Final = "pointer_moved_after_capture"
_NO_REPLAY: Final = ("load", "profile", "graph-estimate", "kv-init", "capture")
_MEASURED: Final = ("load", "profile", "graph-estimate")  # before KV sizing is over
_SURE: Final[dict[str, Confidence]] = {
    reasons.OOM_INSIDE: "certain",
    reasons.OOM_PROFILE: "certain",
    reasons.OOM_SOMEWHERE: "likely",
}
# vLLM 0.13.0 to 0.33.0: the V2 runner's file, as its frames show it.
_V2_RUNNER: Final = "v1/worker/gpu/model_runner.py"


def findings(
    text: Text, settings: Settings, given: Given, refused: Sequence[Finding]
) -> list[Finding]:
    """Findings from debug lines and faults, beside those of the refusals."""
    found = [*_over_reserved(text, settings, given, refused)]
    late = [*_late_growths(text)]
    faulty = [fault for fault in text.faults if not refused]
    moved = [*_moved(text, settings, faulty, late)]
    starved = [*_starved(text, settings, faulty, late)]
    grown = [*_grown(text, settings, given, late)] if not moved and not starved else []
    return _once([*found, *moved, *starved, *grown])


def _once(found: Sequence[Finding]) -> list[Finding]:
    """The first finding of each site, class and rank."""
    seen: dict[object, Finding] = {}
    for finding in found:
        key = finding.log and finding.log.kind, finding.site, finding.ranks
        seen.setdefault(key, finding)
    ranked = {finding.log and finding.log.kind for finding in seen.values() if _ranked(finding)}
    return [f for f in seen.values() if _ranked(f) or (f.log and f.log.kind) not in ranked]


def _ranked(finding: Finding) -> bool:
    return any(ranks.tp is not None for ranks in finding.ranks)


def _over_reserved(
    text: Text, settings: Settings, given: Given, refused: Sequence[Finding]
) -> Iterator[Finding]:
    """A reservation before KV sizing at a site known to ask for too much."""
    for resize in text.resizes:
        if not resize.file or not resize.function or refused:
            continue
        version = version_of(settings.resolve(resize.origin.line))
        rule = _rule(resize, settings, given)
        if rule.site is None or rule.site.triage_class != "over_reserved":
            continue
        if releases.is_fixed(rule.site, version, rule.fits):
            continue
        why = reasons.OVER.format(where=_where(version, rule))
        verdict = Verdict("over_reserved", "WS203", why, "likely", "note")
        yield _of_resize(resize, text, settings, given, verdict)


def _where(version: str | None, rule: bounding.Rule) -> str:
    if rule.fits and rule.site is not None and rule.site.version != version:
        return " in the release whose formula makes this size"
    return " in this version" if version else ""


def _rule(resize: Resize, settings: Settings, given: Given) -> bounding.Rule:
    config = settings.resolve(resize.origin.line)
    numbers = values(config, given, settings.model())
    return bounding.choose_rule(
        (resize.file,), resize.function, version_of(config), numbers, resize.after
    )


def _late_growths(text: Text) -> Iterator[tuple[Resize, str]]:
    """Growths that KV sizing did not see, or that captured graphs do not know of."""
    told: set[tuple[str, str]] = set()
    for resize in text.resizes:
        stream, at = resize.origin.stream, resize.origin.at
        sizes = resize.before.text, resize.after.text
        if sizes in told:
            continue
        told.add(sizes)
        if resize.by_hand:
            yield resize, "hand"
            continue
        after = [
            name
            for name, marks in (("capture", text.captured), ("kv", text.kv))
            if any(m.origin.stream == stream and m.origin.at < at for m in marks)
        ]
        if after:
            yield resize, after[0]


def _moved(
    text: Text,
    settings: Settings,
    faults: Sequence[Fault],
    late: Sequence[tuple[Resize, str]],
) -> Iterator[Finding]:
    for fault in faults:
        if fault.kind != "illegal_access" or _replays_no_graph(text, fault, settings):
            continue
        before = [
            resize
            for resize, after in late
            if after != "kv" and resize.origin.at < fault.origin.at
        ]
        if before:
            moved = Verdict(_MOVED, "WS301", reasons.MOVED, "likely")
            yield _of_fault(text, settings, fault, moved, before[-1])
            continue
        hint = _may_move(text, settings, fault)
        if hint:
            may = Verdict(_MOVED, "WS301", f"{hint} {reasons.MAY}", "possible", "warning")
            yield _of_fault(text, settings, fault, may)


def _replays_no_graph(text: Text, fault: Fault, settings: Settings) -> bool:
    """True where no graph of serving can have read a moved arena: in start-up, and in eager
    mode."""
    if _phase(text, fault) in _NO_REPLAY:
        return True
    return settings.resolve(fault.origin.line).get("enforce_eager") is True


def _may_move(text: Text, settings: Settings, fault: Fault) -> str | None:
    """Why the arena can have moved under captured graphs although no line shows it."""
    version = version_of(settings.resolve(fault.origin.line))
    release = release_of(version)
    v2 = text.v2_runner or any(_V2_RUNNER in frame.path for frame in fault.frames)
    if v2 and not (version and release.has(V2_LOCKS_FROM)):
        return reasons.V2
    if fault.origin.ranks.dcp is not None and not (version and release.has(DCP_WARMED_FROM)):
        return reasons.DCP
    return None


def _starved(
    text: Text,
    settings: Settings,
    faults: Sequence[Fault],
    late: Sequence[tuple[Resize, str]],
) -> Iterator[Finding]:
    """Out of memory inside the manager's growth, or right after one KV sizing never saw."""
    for fault in faults:
        if fault.kind != "out_of_memory":
            continue
        inside = tracebacks.caller(fault.frames)
        grown = [r for r, _ in late if r.origin.at < fault.origin.at]
        if inside is None and not grown:
            inside = _deepest_known(fault)
            if inside is None or inside is not fault.frames[-1]:
                continue
            measured = _phase(text, fault) in _MEASURED
            why = reasons.KNOWN_OOM_PROFILE if measured else reasons.KNOWN_OOM
        else:
            why = _inside_growth(_phase(text, fault)) if inside else reasons.OOM_AFTER
        sure = _SURE.get(why, "possible")
        severity: Severity = "warning" if sure == "possible" else "error"
        verdict = Verdict("unlocked_growth_oom", "WS201", why, sure, severity)
        resize = grown[-1] if grown and inside is None else None
        yield _of_fault(text, settings, fault, verdict, resize, inside)


def _inside_growth(phase: Phase | None) -> str:
    if phase is None:
        return reasons.OOM_SOMEWHERE
    return reasons.OOM_PROFILE if phase in _MEASURED else reasons.OOM_INSIDE


def grew_before(text: Text, fault: Fault) -> bool:
    """Whether the text shows a growth that KV sizing or a graph does not know of."""
    return any(resize.origin.at < fault.origin.at for resize, _ in _late_growths(text))


def _deepest_known(fault: Fault) -> Frame | None:
    return next((frame for frame in reversed(fault.frames) if is_known(frame)), None)


def _phase(text: Text, fault: Fault) -> Phase | None:
    return life.phase_of(text, fault.origin, fault.frames)


def is_known(frame: Frame) -> bool:
    """Whether a known site has a function of this name in a file of this name."""
    return known.match(tracebacks.base(frame.path), frame.function) is not None


def _grown(
    text: Text, settings: Settings, given: Given, late: Sequence[tuple[Resize, str]]
) -> Iterator[Finding]:
    for resize, after in late:
        why = reasons.LATE
        if _is_reservation(resize, settings, given):
            why = reasons.RESERVED_LATE
        verdict = Verdict("unlocked_growth_oom", "WS201", why, "likely", "warning")
        if after != "kv":
            why = reasons.BY_HAND if after == "hand" else reasons.LATE_CAPTURE
            verdict = Verdict(_MOVED, "WS301", why, "likely", "warning")
        yield _of_resize(resize, text, settings, given, verdict)


def _is_reservation(resize: Resize, settings: Settings, given: Given) -> bool:
    """Whether vLLM's own builder reserved there, which KV sizing does not count."""
    site = _rule(resize, settings, given).site
    return site is not None and site.triage_class == "unlocked_growth_oom"


def _of_resize(
    resize: Resize, text: Text, settings: Settings, given: Given, verdict: Verdict
) -> Finding:
    config = settings.resolve(resize.origin.line)
    version = version_of(config)
    rule = _rule(resize, settings, given)
    site = rule.site
    numbers = {**values(config, given, settings.model()), **rule.solved}
    exact = sizes.locked(resize.after, text.locks)
    if exact is None and site is not None:
        made = sizes.fixed(site, numbers, resize.after, None)
        exact = made.bytes if isinstance(made, sizes.Made) else None
    bound = bounding.site_bound(site, numbers)
    if bound is not None and rule.solved:
        bound = bounding.with_solved(bound, rule.solved, resize.after)
    bound = bounding.of_release(bound, rule, version, resize.after)
    if verdict.kind != "over_reserved":
        bound = bounding.checked(bound, site, numbers, resize.after, ())
    log = FromLog(
        verdict.kind,
        text.path,
        resize.origin.line,
        line=resize.line,
        required_text=resize.after.text,
        required_exact=exact is not None,
        current_text=resize.before.text,
        version=version,
        rule=site,
        confidence=verdict.confidence,
        why=verdict.why,
        evidence=(_growth_line(resize),),
        numbers=numbers,
    )
    log = releases.with_releases(log, rule.fits)
    ubatch = resize.ubatch
    return Finding(
        verdict.code,
        verdict.severity,
        "",
        file=resize.file or "",
        function=resize.function or "",
        serving_bytes=resize.after.bytes if exact is None else exact,
        arena_bytes=resize.before.bytes,
        ranks=_ranks(resize),
        slot=None if ubatch is None else Slot(ubatch, resize.lane or 0),
        bound=bound,
        log=log,
    )


def _ranks(fact: Resize | Fault) -> tuple[Ranks, ...]:
    return (fact.origin.ranks,) if fact.origin.ranks != NOWHERE else ()


def _of_fault(
    text: Text,
    settings: Settings,
    fault: Fault,
    verdict: Verdict,
    resize: Resize | None = None,
    frame: Frame | None = None,
) -> Finding:
    evidence = [f"line {fault.origin.line}: {fault.kind.replace('_', ' ')}"]
    tried = printed_size(fault.tried) if fault.tried else None
    if tried:
        evidence.append(f"tried to allocate {tried.text}")
    if resize:
        evidence.append(_growth_line(resize))
    asked = resize.after if resize else tried
    file = tracebacks.base(frame.path) if frame else resize.file if resize else None
    function = frame.function if frame else resize.function if resize else None
    version = version_of(settings.resolve(fault.origin.line))
    site = known.match(file, function, version) if file and function else None
    if verdict.why in reasons.IN_PROFILING:
        site = None  # what moves and cures the site's requests does not help here
    log = FromLog(
        verdict.kind,
        text.path,
        fault.origin.line,
        line=frame.line if frame else resize.line if resize else None,
        required_text=asked.text if asked else None,
        current_text=resize.before.text if resize else None,
        version=version,
        rule=site,
        confidence=verdict.confidence,
        why=verdict.why,
        evidence=tuple(evidence),
    )
    return Finding(
        verdict.code,
        verdict.severity,
        "",
        file=file or "",
        function=function or "",
        serving_bytes=asked.bytes if asked else None,
        arena_bytes=resize.before.bytes if resize else None,
        ranks=_ranks(fault),
        phase=_phase(text, fault),
        log=log,
    )


def _growth_line(resize: Resize) -> str:
    return f"line {resize.origin.line}: {resize.before.text} -> {resize.after.text}"
