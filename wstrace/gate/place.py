"""How a finding is named across machines: no paths, no lines, no pids, no ranks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from wstrace.findings.finding import Finding
from wstrace.trace.records import Slot


def slot_kind(slot: Slot | None) -> str:
    """`main`, `ubatch`, `lane` or `ubatch+lane`; empty for a finding about no slot.

    The kind and not the number: how many ubatches and lanes there are is a matter of config.
    """
    if slot is None:
        return ""
    parts = [name for name, at in (("ubatch", slot.ubatch), ("lane", slot.lane)) if at]
    return "+".join(parts) or "main"


@dataclass(frozen=True, order=True)
class Place:
    """A finding's identity: code, `file:function` and kind of slot."""

    code: str
    site: str = ""
    slot: str = ""

    @property
    def fingerprint(self) -> str:
        """A short stable hash, for formats that track a finding over time."""
        text = "\n".join((self.code, self.site, self.slot))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def place_of(finding: Finding) -> Place:
    """The identity of a finding."""
    return Place(finding.code, finding.site, slot_kind(finding.slot))


def size_of(finding: Finding) -> int | None:
    """The bytes by which a finding grows: the request's, else the arena's."""
    if finding.serving_bytes is not None:
        return finding.serving_bytes
    return finding.arena_bytes
