"""A finding: one code, one site or slot, the ranks that show it, its numbers.

One type for both ways in: a trace, and a log or a pasted text (then `log` says what the text
adds).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final, Literal

from wstrace.bounds.bound import Bound
from wstrace.findings.codes import CODES, ORDER, Code, Severity
from wstrace.known_sites.known import Cover, KnownSite, LogClass
from wstrace.trace.records import Phase, Ranks, Slot, Step
from wstrace.trace.site_key import SiteKey

Confidence = Literal["certain", "likely", "possible"]
Span = tuple[str, str]
"""Releases from one on and up to, not including, another; "" where there is no end."""
RESERVE_COMMAND: Final = "wstrace reserve"
"""In the advice of each finding against which a reserve helps."""
UNNUMBERED: Final = -1  # `index` of a step that a text shows: vLLM's dump does not count


@dataclass(frozen=True)
class Sibling:
    """A site of the same backend that fails next: what vLLM reserves of it in this release, and
    its worst case, whose `needs` name what is missing."""

    rule: KnownSite
    cover: Cover
    bound: Bound

    @property
    def file(self) -> str:
        """The base name, as vLLM's message has it."""
        return PurePosixPath(self.rule.files[0]).name

    @property
    def function(self) -> str:
        """The plain name, as vLLM's message has it."""
        return self.rule.functions[0].rpartition(".")[2]

    @property
    def site(self) -> str:
        """`file:function`."""
        return str(SiteKey(self.file, self.function))

    @property
    def why(self) -> str:
        """What vLLM reserves of it, in words."""
        since, until = self.cover.since, self.cover.until
        span = f"{since} up to, not including, {until}" if until else f"from {since} on"
        if self.cover.covers == "none":
            when = f" ({self.cover.when})" if self.cover.when else ""
            return f"vLLM reserves nothing for it {span}{when}"
        return f"vLLM reserves only a part {span}: not {self.cover.gap}"


@dataclass(frozen=True)
class FromLog:
    """What a text adds to a finding: where it stands there, and how far it can be trusted.

    `at` is the line of `path`, in its `part` where it is a thread or an archive; `line` the
    site's own, which differs from build to build. Sizes stand as they were printed, `*_exact`
    where the bytes behind one are known. `name` is the key of a persistent resource, `module`
    the file below the vllm package. `version` and `model` are of the engine that the text shows
    there. `rule` is the known site, `numbers` what its formula was
    computed with, `fits` the releases whose formula alone makes the size, `siblings` the sites
    of the same backend that fail next. `commands` are what to type, the best first. `title` is
    the headline where the code's own would say more than the text shows.
    """

    kind: LogClass
    path: str
    at: int
    line: int | None = None
    module: str | None = None
    name: str | None = None
    required_text: str | None = None
    required_exact: bool = False
    current_text: str | None = None
    current_exact: bool = False
    version: str | None = None
    rule: KnownSite | None = None
    confidence: Confidence = "certain"
    why: str = ""
    evidence: tuple[str, ...] = ()
    times: int = 1
    numbers: dict[str, int] = field(default_factory=dict, repr=False)
    commands: tuple[str, ...] = ()
    fits: tuple[Span, ...] = ()
    siblings: tuple[Sibling, ...] = ()
    part: str = ""
    title: str = ""
    model: str | None = None

    @property
    def fixed_in(self) -> str | None:
        """The first release in which the rule's site is fixed."""
        return (self.rule.first_fixed or None) if self.rule else None


@dataclass(frozen=True)
class Finding:
    """See `docs/findings/CODE.md` for what a code means. Sizes are bytes, None where unknown.

    `arena_bytes` is the slot's arena when warm-up ended. `steps` holds the scheduler state
    of the worst request, `detail` one sentence with the evidence, `advice` what to do. `world`
    has the sizes of the run's parallel groups, by which `ranks` are named.
    """

    code: str
    severity: Severity
    detail: str
    advice: str = ""
    file: str = ""
    function: str = ""
    caller: str = ""
    slot: Slot | None = None
    ranks: tuple[Ranks, ...] = ()
    layers: tuple[str, ...] = ()
    warmup_bytes: int | None = None
    serving_bytes: int | None = None
    arena_bytes: int | None = None
    bound: Bound | None = None
    phase: Phase | None = None
    step: Step | None = None
    statements: tuple[str, ...] = field(default=(), compare=False)
    log: FromLog | None = None
    world: Ranks | None = field(default=None, compare=False)

    @property
    def row(self) -> Code:
        """What its code means."""
        return CODES[self.code]

    @property
    def reservable(self) -> bool:
        """Whether a reserve made from its run helps: bytes in an arena cure its code, and of an
        escape the request itself is recorded, so that it has a bound."""
        return self.row.arena and (self.bound is not None or not self.row.escape)

    @property
    def title(self) -> str:
        """The code's short meaning, or what the text shows of it."""
        return (self.log.title if self.log else "") or self.row.title

    @property
    def key(self) -> SiteKey:
        """The site; without a file for a finding about a slot or a process."""
        return SiteKey(self.file, self.function)

    @property
    def site(self) -> str:
        """`file:function`, or empty for a finding about a slot or a process."""
        return str(self.key) if self.file else ""

    @property
    def named(self) -> str:
        """What reports call its site: vLLM's own caller string, else the site as far as it is
        known; empty for a finding about a slot or a process."""
        return self.caller or (self.where if self.log else self.site)

    @property
    def where(self) -> str:
        """The site as far as it is known: a text may name a function or a resource alone."""
        name = self.log.name if self.log else None
        return ":".join(filter(None, (self.file, self.function))) or name or "unknown site"


def merge(findings: list[Finding]) -> list[Finding]:
    """One finding for each (code, site, slot): the worst rank's numbers, all ranks named.

    Sorted by severity, then size, then code and site, so that output is stable.
    """
    merged: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.file, finding.function, finding.slot, _extra(finding))
        seen = merged.get(key)
        merged[key] = finding if seen is None else _worse(seen, finding)
    return ordered(merged.values())


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """By severity, then size, then code and site."""
    return sorted(findings, key=_rank)


def _extra(finding: Finding) -> str:
    """Findings without a site are told apart by their sentence."""
    return "" if finding.file else finding.detail


def _worse(a: Finding, b: Finding) -> Finding:
    worst = max(a, b, key=_harm)
    ranks = tuple(dict.fromkeys(a.ranks + b.ranks))
    layers = tuple(sorted({*a.layers, *b.layers}))
    return replace(worst, ranks=ranks, layers=layers)


def _harm(finding: Finding) -> tuple[int, int, int, int]:
    """How bad a rank is off: of equal requests the larger bound, then the smaller arena."""
    bound = (finding.bound.bytes or 0) if finding.bound else 0
    request, arena = finding.serving_bytes or 0, finding.arena_bytes or 0
    return -ORDER[finding.severity], request, bound, -arena


def _rank(finding: Finding) -> tuple[object, ...]:
    size = finding.serving_bytes or 0
    return (ORDER[finding.severity], -size, finding.code, finding.site, str(finding.slot))
