"""What to type now: the commands that help with one finding, best first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from wstrace.findings.codes import REFUSED_ELSEWHERE
from wstrace.versions import release_of

if TYPE_CHECKING:
    from wstrace.triage.diagnose.finding import Finding

RECORD: Final = "wstrace run -- vllm serve ...   (then: wstrace reserve TRACE -o reserve.yaml)"
RUN: Final = "wstrace run -- vllm serve ...   (shows which slot lacks it, and since when)"
EAGER: Final = "until then: --enforce-eager (no graphs, no lock; decoding gets slower)"
_ARENA: Final = ("never_profiled", "undersized_in_profile", "wrong_slot", "order_of_warmup")
_MOST_NAMES: Final = 4


def commands(finding: Finding) -> list[str]:
    """Lines to type, each a command or a short note with one."""
    if finding.kind in _ARENA and finding.code not in REFUSED_ELSEWHERE:
        return _for_arena(finding)
    if finding.kind == "persistent_resource_missing" or finding.code == "WS106":
        return [
            *_upgrade(finding),
            RUN,
            EAGER,
            "no reserve helps: the bytes are not the arena's",
        ]
    if finding.kind == "over_reserved":
        return [
            *_upgrade(finding),
            "wstrace bound " + (finding.site.id if finding.site else ""),
        ]
    return [
        *_upgrade(finding),
        RECORD,
        "or, without wstrace: VLLM_DEBUG_WORKSPACE=1 vllm serve ...   (prints every growth)",
    ]


def _for_arena(finding: Finding) -> list[str]:
    log = shlex.quote(finding.path)
    if finding.worst.bytes is not None:
        return [
            f"wstrace triage {log}{_given(finding)} --reserve reserve.yaml",
            "WSTRACE_RESERVE=reserve.yaml vllm serve ...   (wstrace installed beside vLLM)",
            *_upgrade(finding),
        ]
    if finding.site is not None and finding.worst.needs:
        names = finding.worst.needs[:_MOST_NAMES]
        sets = " ".join(f"--set {name}=N" for name in names)
        return [
            *_upgrade(finding),
            f"wstrace triage {log}{_given(finding)} {sets}",
            f"or: {RECORD}",
        ]
    if finding.worst.contradiction:
        return [
            *_upgrade(finding),
            f"wstrace triage {log} ...   (with the failing server's own numbers)",
            f"or: {RECORD}",
        ]
    return [RECORD, EAGER]


def _given(finding: Finding) -> str:
    """What the person gave, to be given again: the next call starts from the log alone."""
    given = finding.given
    model = f" --model-config {shlex.quote(str(given.model_config))}"
    sets = "".join(f" --set {name}={value}" for name, value in given.numbers.items())
    return (model if given.model_config is not None else "") + sets


def is_older(version: str | None, fixed: str | None) -> bool:
    """True unless the text says a version and that has the fix."""
    return bool(fixed) and not (version and release_of(version).has_fix(fixed or ""))


def _upgrade(finding: Finding) -> list[str]:
    if not is_older(finding.version, finding.fixed_in):
        return []
    return [f"pip install 'vllm>={finding.fixed_in}'"]
