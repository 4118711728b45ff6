"""The last step of a finding: what to type, the best first, its sentence, nothing private."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wstrace.findings.codes import REFUSED_ELSEWHERE
from wstrace.triage.diagnose import reasons, releases
from wstrace.triage.redaction import redact
from wstrace.versions import release_of

if TYPE_CHECKING:
    from wstrace.bounds.bound import Bound
    from wstrace.findings.finding import Finding, FromLog
    from wstrace.triage.diagnose.numbers import Given

RECORD: Final = "wstrace run -- vllm serve ...   (then: wstrace reserve TRACE -o reserve.yaml)"
RUN: Final = "wstrace run -- vllm serve ...   (shows which slot lacks it, and since when)"
# vLLM 0.30.0: capture_model of the V2 runner locks the workspace, in 0.28.0 it does not.
V2_LOCKS_FROM: Final = "0.30.0"
EAGER: Final = "until then: --enforce-eager (no graphs, no lock; decoding gets slower)"
_ARENA: Final = ("never_profiled", "undersized_in_profile", "wrong_slot", "order_of_warmup")
_MOST_NAMES: Final = 4


def commands(code: str, log: FromLog, bound: Bound | None, given: Given) -> list[str]:
    """Lines to type, each a command or a short note with one."""
    if reasons.says(log.why, reasons.LANE):
        return [RUN, "no reserve helps: the lane is not there"]
    if log.kind in _ARENA and code not in REFUSED_ELSEWHERE:
        return _for_arena(log, bound, given)
    if code in REFUSED_ELSEWHERE:
        return [
            *_upgrade(log, bound),
            RUN,
            EAGER,
            "no reserve helps: the bytes are not the arena's",
        ]
    if log.why in reasons.IN_PROFILING:
        return ["vllm serve ... --max-num-batched-tokens N   (a smaller N than now)"]
    if log.kind == "over_reserved":
        return [*_upgrade(log, bound), "wstrace bound " + (log.rule.id if log.rule else "")]
    locks = f"pip install 'vllm>={V2_LOCKS_FROM}'   (it locks: a refusal names the layer)"
    return [
        *_upgrade(log, bound),
        RECORD,
        "or, without wstrace: VLLM_DEBUG_WORKSPACE=1 vllm serve ...   (prints every growth)",
        *([locks] if reasons.says(log.why, reasons.V2) else []),
    ]


def _for_arena(log: FromLog, bound: Bound | None, given: Given) -> list[str]:
    again = f"wstrace triage {shlex.quote(log.path)}"
    if bound is None:
        return [RECORD, EAGER]
    if bound.bytes is not None:
        return [
            f"{again}{_given(given)} --reserve reserve.yaml",
            "WSTRACE_RESERVE=reserve.yaml vllm serve ...   (wstrace installed beside vLLM)",
            *_upgrade(log, bound),
        ]
    if bound.needs:
        sets = " ".join(f"--set {name}=N" for name in bound.needs[:_MOST_NAMES])
        return [*_upgrade(log, bound), f"{again}{_given(given)} {sets}", f"or: {RECORD}"]
    if bound.contradiction:
        own = f"{again} ...   (with the failing server's own numbers)"
        return [*_upgrade(log, bound), own, f"or: {RECORD}"]
    return [RECORD, EAGER]


def _given(given: Given) -> str:
    """What the person gave, to be given again: the next call starts from the log alone."""
    model = f" --model-config {shlex.quote(str(given.model_config))}"
    sets = "".join(f" --set {name}={value}" for name, value in given.told.items())
    return (model if given.model_config is not None else "") + sets


def is_older(version: str | None, fixed: str | None) -> bool:
    """True unless the text says a version and that has the fix."""
    return bool(fixed) and not (version and release_of(version).has_fix(fixed or ""))


def _upgrade(log: FromLog, bound: Bound | None) -> list[str]:
    """The release with the fix, and what the site can need there."""
    advised = log.fixed_in
    if advised is None or not is_older(log.version, advised):
        return []
    need = releases.need_under(log, bound, advised)
    return [f"pip install 'vllm>={advised}'" + (f"   ({need})" if need else "")]


_GREW: Final = ("over_reserved", "unlocked_growth_oom", "pointer_moved_after_capture")


def told(finding: Finding, given: Given) -> Finding:
    """The finding with `detail`, `caller`, `advice` and commands; its names redacted."""
    log = finding.log
    assert log is not None
    lines = tuple(commands(finding.code, log, finding.bound, given))
    log = replace(
        log,
        title=reasons.headline(log.why),
        name=redact(log.name) if log.name else None,
        module=redact(log.module) if log.module else None,
        commands=lines,
        evidence=tuple(map(redact, log.evidence)),
    )
    file, function = redact(finding.file), redact(finding.function)
    line = str(log.line) if log.line is not None else ""
    return replace(
        finding,
        detail=_sizes(log),
        advice=lines[0],
        file=file,
        function=function,
        caller=":".join(part for part in (file, line, function) if part) if file else function,
        layers=tuple(map(redact, finding.layers)),
        log=log,
    )


def _sizes(log: FromLog) -> str:
    """What was asked for and what there was, in words."""
    if log.required_text is None:
        return f"asked for the resource {log.name}" if log.name else "no sizes in the text"
    if log.kind in _GREW:
        if not log.current_text:
            return f"tried to allocate {log.required_text}"
        return f"grew from {log.current_text} to {log.required_text}"
    return f"asked for {log.required_text}, had {log.current_text or 'an unknown size'}"
