"""Which of the known ways to fail this was, with the reasons."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wstrace.trace.records import Slot
from wstrace.triage.diagnose import reasons
from wstrace.triage.diagnose.numbers import version_of
from wstrace.versions import release_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstrace.findings.codes import Severity
    from wstrace.findings.finding import Confidence
    from wstrace.known_sites.known import KnownSite, LogClass
    from wstrace.triage.extract.engine_settings import Value
    from wstrace.triage.extract.facts import Refusal, Resize, Text

STARTUP: Final = ("capture", "post-lock-warmup")
# vLLM 0.13.0 to 0.33.0: the first lock of a process comes with the capture.
BEFORE_LOCK: Final = ("load", "profile", "graph-estimate", "kv-init")
_FIRST: Final = "slot (0, 0) only"
# matches: 'slot (0, 0) only'
_SLOTS: Final = re.compile(r"slot \(0, 0\)|ubatch|lane")
# vLLM 0.13.0 to 0.18.1: a growth replaces every ubatch's arena, so that none is left behind.
_OWN_SLOT_FROM: Final = "0.20.0"
_BY_REFUSAL: Final = ("never_profiled", "undersized_in_profile", "wrong_slot")


@dataclass(frozen=True)
class Verdict:
    """The class, its finding code, how sure that is, and why in one or two sentences.

    `severity` is less than an error only where the text does not say that it happened.
    """

    kind: LogClass
    code: str
    why: str
    confidence: Confidence = "certain"
    severity: Severity = "error"


def classify(
    refusal: Refusal,
    site: KnownSite | None,
    phase: str | None,
    text: Text,
    config: dict[str, Value],
) -> Verdict:
    """The verdict on one refusal, strongest evidence first; never certain of a retelling."""
    verdict = _classified(refusal, site, phase, text, config)
    if refusal.quoted:
        return _doubted(verdict, reasons.QUOTED)
    if _is_example(refusal):
        return _doubted(verdict, reasons.EXAMPLE)
    if refusal.retold and verdict.confidence == "certain":
        return replace(verdict, confidence="likely", why=f"{verdict.why} {reasons.RETOLD}")
    return verdict


def _doubted(verdict: Verdict, why: str) -> Verdict:
    """The verdict on what may never have happened."""
    return replace(verdict, confidence="possible", why=f"{verdict.why} {why}", severity="note")


def _is_example(refusal: Refusal) -> bool:
    """A caller without its line and round sizes, outside of any log: made up to explain."""
    sizes = (refusal.required, refusal.current)
    return (
        refusal.kind == "arena"
        and bool(refusal.file)
        and refusal.line is None
        and not refusal.origin.label
        and not refusal.frames
        # matches: "10,423,000.0 bytes"
        and all(size is not None and re.match(r"[\d,]+(\.0+)? ", size.text) for size in sizes)
    )


def _classified(
    refusal: Refusal,
    site: KnownSite | None,
    phase: str | None,
    text: Text,
    config: dict[str, Value],
) -> Verdict:
    if refusal.kind != "arena":
        return _not_arena(refusal, site)
    if phase in BEFORE_LOCK:
        why = reasons.LOCKED_EARLY.format(phase=phase)
        return Verdict("order_of_warmup", _code(refusal), why)
    built = "" if phase else _built(refusal, site)
    if built:
        why = reasons.LOCKED_EARLY.format(phase=built)
        return Verdict("order_of_warmup", _code(refusal), why, "likely")
    if phase in STARTUP:
        return Verdict("order_of_warmup", _code(refusal), reasons.ORDER.format(phase=phase))
    for judge in (
        _by_early_lock,
        _by_numbers,
        _by_slot,
        _by_half_batch,
        _by_debug_lines,
        _by_site,
        _by_size,
    ):
        verdict = judge(refusal, site, text, config)
        if verdict and (judge is _by_numbers or _can_be(verdict, config)):
            return verdict
    return Verdict("unknown", _code(refusal), reasons.UNKNOWN, "possible")


def _built(refusal: Refusal, site: KnownSite | None) -> str:
    """The phase before the lock in which vLLM makes what asked here: a layer's or a backend's
    constructor while loading, a metadata builder's with the KV cache. "" for other callers."""
    names = [name.rpartition(".") for name in site.functions] if site else []
    owners = {owner for owner, _, function in names if function == refusal.function}
    builders = bool(owners) and all(owner.endswith("Builder") for owner in owners)
    if builders:
        return "kv-init"
    return "load" if refusal.function == "__init__" else ""


def _can_be(verdict: Verdict, config: dict[str, Value]) -> bool:
    """Whether the text's own release can leave one slot smaller than another."""
    version = version_of(config)
    if verdict.kind != "wrong_slot" or version is None:
        return True
    return release_of(version).has(_OWN_SLOT_FROM)


def _by_early_lock(
    refusal: Refusal, site: KnownSite | None, text: Text, config: dict[str, Value]
) -> Verdict | None:
    """Debug lines show a lock before KV sizing, and none since."""
    stream, at = refusal.origin.stream, refusal.origin.at
    kv = [k.origin.at for k in text.kv if k.origin.stream == stream and k.origin.at < at]
    states = [s for s in text.locks if s.origin.stream == stream and s.origin.at < at]
    if not kv or not states or not states[-1].locked or states[-1].origin.at > kv[-1]:
        return None
    why = reasons.LOCKED_EARLY.format(phase="profile")
    return Verdict("order_of_warmup", _code(refusal), why, "likely")


def _by_numbers(
    refusal: Refusal, site: KnownSite | None, text: Text, config: dict[str, Value]
) -> Verdict | None:
    """Less was asked than the arena has: vLLM refuses no such request."""
    asked, had = refusal.required, refusal.current
    if asked is None or had is None or had.bytes is None or asked.high >= had.low:
        return None
    why = reasons.ANOTHER_SLOT.format(asked=asked.text, had=had.text)
    return Verdict("wrong_slot", "WS104", why, "possible")


def _code(refusal: Refusal) -> str:
    return "WS101" if _is_empty(refusal) else "WS102"


def _not_arena(refusal: Refusal, site: KnownSite | None) -> Verdict:
    if refusal.kind == "lane":
        return Verdict("wrong_slot", "WS104", reasons.LANE.format(detail=refusal.detail))
    if refusal.kind == "scratch":
        kind: LogClass = "undersized_in_profile"
        if site and site.triage_class == "persistent_resource_missing":
            kind = "persistent_resource_missing"
        return Verdict(kind, "WS106", reasons.SCRATCH)
    if refusal.kind == "shape":
        why = f"The resource exists with another shape: it {refusal.detail}."
        return Verdict("persistent_resource_missing", "WS105", why)
    return Verdict("persistent_resource_missing", "WS105", reasons.PERSISTENT)


def _by_slot(
    refusal: Refusal, site: KnownSite | None, text: Text, config: dict[str, Value]
) -> Verdict | None:
    """Another slot was made large enough before the lock."""
    required = refusal.required
    if required is None or required.bytes is None:
        return None
    for resize in _before(refusal, text.resizes):
        other = resize.ubatch is not None and (resize.ubatch or resize.lane)
        if other and (resize.after.bytes or 0) >= required.low:
            slot = Slot(resize.ubatch or 0, resize.lane or 0).text
            return Verdict(
                "wrong_slot", "WS104", reasons.OTHER_SLOT.format(slot=slot), "likely"
            )
    return None


def _by_half_batch(
    refusal: Refusal, site: KnownSite | None, text: Text, config: dict[str, Value]
) -> Verdict | None:
    """Exactly twice the arena on a DP rank: its slot was profiled with half a batch."""
    required, current = refusal.required, refusal.current
    if config.get("enable_dbo") is False or not site or site.family != "moe":
        return None
    ranks = refusal.origin.ranks
    if not required or not current or not current.bytes or ranks.dp is None or ranks.ep is None:
        return None
    doubled = required.bytes == 2 * current.bytes
    return Verdict("wrong_slot", "WS104", reasons.HALF, "possible") if doubled else None


def _by_debug_lines(
    refusal: Refusal, site: KnownSite | None, text: Text, config: dict[str, Value]
) -> Verdict | None:
    """VLLM_DEBUG_WORKSPACE shows whether the site asked before the lock."""
    if site and site.triage_class in _BY_REFUSAL:
        return None
    earlier = _before(refusal, text.resizes)
    if not earlier or not refusal.function:
        return None
    if any(r.file == refusal.file and r.function == refusal.function for r in earlier):
        return Verdict("undersized_in_profile", "WS102", reasons.ASKED_LESS)
    return Verdict("never_profiled", "WS101", reasons.NEVER_ASKED, "likely")


def _before(refusal: Refusal, resizes: Sequence[Resize]) -> list[Resize]:
    at, stream = refusal.origin.at, refusal.origin.stream
    return [r for r in resizes if r.origin.at < at and r.origin.stream in (stream, "")]


def _by_site(
    refusal: Refusal, site: KnownSite | None, text: Text, config: dict[str, Value]
) -> Verdict | None:
    if site is None:
        return None
    if site.triage_class == "wrong_slot":
        return Verdict("wrong_slot", "WS104", reasons.SITE_SLOT, "likely")
    reserved = _reserved(site)
    if reserved is not None:
        return reserved
    if _is_empty(refusal) and site.triage_class != "never_profiled":
        return Verdict("never_profiled", "WS101", reasons.NOTHING_ASKED)
    if site.triage_class == "undersized_in_profile" and _is_constant(site):
        return Verdict("never_profiled", "WS101", reasons.CONSTANT, "likely")
    if site.triage_class in ("undersized_in_profile", "over_reserved"):
        kind: LogClass = "undersized_in_profile"
        return Verdict(kind, "WS102", reasons.UNDERSIZED)
    if site.triage_class == "never_profiled":
        return _never(refusal, site)
    if site.triage_class == "pointer_moved_after_capture":
        return Verdict("undersized_in_profile", "WS102", reasons.UNDERSIZED, "likely")
    return None


def _never(refusal: Refusal, site: KnownSite) -> Verdict:
    """Not certain where graph capture may run the site, at its own sizes: then the arena is
    not empty. Without a version the first release is meant, as for what fails next."""
    cover = site.cover(site.version) if site.version else next(iter(site.covers), None)
    if cover is None or not cover.when or _is_empty(refusal) or refusal.current is None:
        return Verdict("never_profiled", "WS101", reasons.NEVER)
    why = reasons.NEVER_BUT.format(when=cover.when)
    return Verdict("never_profiled", "WS101", why, "likely")


def _reserved(site: KnownSite) -> Verdict | None:
    """The text's own release reserves the site's worst case before the lock, or, where it has
    the fix, a part of it: what was refused is what that leaves open."""
    cover = site.cover(site.version) if site.version else None
    if cover is None or cover.covers == "none":
        return None
    whole = cover.covers == "full"
    fixed = bool(site.first_fixed) and release_of(site.version).has(site.first_fixed)
    if not (whole or fixed or site.triage_class == "never_profiled" or _FIRST in cover.gap):
        return None
    if whole and _SLOTS.search(cover.gap):
        return Verdict("wrong_slot", "WS104", reasons.SITE_SLOT, "likely")
    why = reasons.RESERVED if whole else reasons.RESERVED_PART.format(gap=cover.gap)
    if site.triage_class == "never_profiled":
        return Verdict("never_profiled", "WS101", why, "likely")
    if site.triage_class in ("undersized_in_profile", "over_reserved"):
        return Verdict("undersized_in_profile", "WS102", why, "likely")
    return None


def _is_constant(site: KnownSite) -> bool:
    """True where every call of this release asks for the same bytes, so that no smaller one in
    warm-up is possible. Of what vLLM reserves itself a refusal is another slot's."""
    cover = site.cover(site.version)
    reserved = cover is not None and cover.covers == "full"
    return bool(site.version) and not (site.drivers or site.variant.also or reserved)


def _by_size(
    refusal: Refusal, site: KnownSite | None, text: Text, config: dict[str, Value]
) -> Verdict | None:
    if _is_empty(refusal):
        return Verdict("never_profiled", "WS101", reasons.EMPTY)
    return None


def _is_empty(refusal: Refusal) -> bool:
    return refusal.current is not None and refusal.current.bytes == 0
