"""The finding of a log: the contract of `wstrace triage --format json`, version 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.extract.ranks import NOWHERE, Ranks

if TYPE_CHECKING:
    from wstrace.known_sites.known import KnownSite

Class = Literal[
    "never_profiled",
    "undersized_in_profile",
    "wrong_slot",
    "persistent_resource_missing",
    "unlocked_growth_oom",
    "pointer_moved_after_capture",
    "order_of_warmup",
    "over_reserved",
    "unknown",
]
Confidence = Literal["certain", "likely", "possible"]


@dataclass(frozen=True)
class Worst:
    """What the site can ever need, in bytes; None while `needs` names missing numbers.

    `assumed` lists numbers that nobody gave: defaults, and what the log's own sizes fix.
    `contradiction` says why the numbers cannot be the failing server's; then bytes is None.
    """

    bytes: int | None = None
    formula: str | None = None
    grade: Literal["proved", "fitted"] | None = None
    needs: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    contradiction: str = ""


@dataclass(frozen=True)
class Step:
    """The scheduler's step at the failure: tokens of the step, (scheduled, computed) each."""

    total_tokens: int | None
    requests: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Finding:
    """One conclusion about one site in one rank. Sizes are bytes; None is unknown."""

    code: str
    kind: Class
    path: str
    at: int
    file: str | None = None
    function: str | None = None
    line: int | None = None
    module: str | None = None
    required_bytes: int | None = None
    required_text: str | None = None
    required_exact: bool = False
    current_bytes: int | None = None
    current_text: str | None = None
    current_exact: bool = False
    ranks: Ranks = NOWHERE
    slot: tuple[int, int] | None = None
    layer: str | None = None
    name: str | None = None
    version: str | None = None
    site: KnownSite | None = None
    worst: Worst = Worst()
    fixed_in: str | None = None
    confidence: Confidence = "certain"
    why: str = ""
    evidence: tuple[str, ...] = ()
    phase: str | None = None
    step: Step | None = None
    times: int = 1
    values: dict[str, int] = field(default_factory=dict, repr=False)
    given: Given = field(default_factory=Given, repr=False)

    @property
    def where(self) -> str:
        """`file:function` as far as known; the stable name of the site."""
        parts = [part for part in (self.file, self.function) if part]
        return ":".join(parts) or self.name or "unknown site"

    def as_json(self) -> dict[str, Any]:
        """The contract's object, with fields of ours after it."""
        return {
            "code": self.code,
            "file": self.file,
            "function": self.function,
            "line": self.line,
            "required_bytes": self.required_bytes,
            "current_bytes": self.current_bytes,
            "required_text": self.required_text,
            "current_text": self.current_text,
            "required_exact": self.required_exact,
            "current_exact": self.current_exact,
            "class": self.kind,
            "rank": {name: getattr(self.ranks, name) for name in ("dp", "tp", "pp", "ep")},
            "slot": self._slot(),
            "layer": self.layer,
            "vllm_version": self.version,
            "known_site": self.site.id if self.site else None,
            "worst_case": self._worst(),
            "lever": self._lever(),
            "not_levers": self._not_levers(),
            "fixed_in": self.fixed_in,
            "links": list(self.site.links) if self.site else [],
            "source": {"path": self.path, "line": self.at},
            "confidence": self.confidence,
            "why": self.why,
            "evidence": list(self.evidence),
            "phase": self.phase,
            "step": self._step(),
            "name": self.name,
            "module": self.module,
            "times": self.times,
        }

    def _slot(self) -> dict[str, int] | None:
        return None if self.slot is None else {"ubatch": self.slot[0], "lane": self.slot[1]}

    def _worst(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "bytes": worst.bytes,
            "formula": worst.formula,
            "grade": worst.grade,
            "needs": list(worst.needs),
            "assumed": list(worst.assumed),
            "contradiction": worst.contradiction or None,
        }

    def _lever(self) -> dict[str, str] | None:
        lever = self.site.lever if self.site else None
        return {"flag": lever.flag, "effect": lever.effect} if lever else None

    def _not_levers(self) -> list[dict[str, str]]:
        flags = self.site.not_levers if self.site else ()
        return [{"flag": flag.flag, "why": flag.why} for flag in flags]

    def _step(self) -> dict[str, Any] | None:
        if self.step is None:
            return None
        return {
            "total_tokens": self.step.total_tokens,
            "requests": [{"scheduled": s, "computed": c} for s, c in self.step.requests],
        }
