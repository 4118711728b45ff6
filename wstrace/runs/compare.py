"""Two runs side by side: which sites appeared, grew, shrank, went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wstrace.runs.run import Run, RunSite
from wstrace.trace.records import Slot
from wstrace.trace.site_key import SiteKey

Change = Literal["appeared", "grew", "shrank", "went", "same"]
ORDER: dict[Change, int] = {"appeared": 0, "grew": 1, "went": 2, "shrank": 3, "same": 4}


@dataclass(frozen=True)
class SiteChange:
    """One site and slot in run A and run B. Sizes are the largest requests, in bytes."""

    key: SiteKey
    slot: Slot
    change: Change
    a: RunSite | None
    b: RunSite | None

    @property
    def named(self) -> str:
        """What reports call the site, as run B names it where it was seen there."""
        seen = self.b or self.a
        return seen.named if seen else str(self.key)

    @property
    def bytes_a(self) -> int:
        """Largest request in A, 0 where the site was not seen."""
        return _largest(self.a)

    @property
    def bytes_b(self) -> int:
        """Largest request in B, 0 where the site was not seen."""
        return _largest(self.b)


def _largest(site: RunSite | None) -> int:
    return site.largest if site else 0


def compare(a: Run, b: Run) -> list[SiteChange]:
    """Every site of either run, what changed first, then by size."""
    rows_a = {(s.key, s.slot): s for s in a.sites}
    rows_b = {(s.key, s.slot): s for s in b.sites}
    changes = [
        SiteChange(
            *where,
            _change(rows_a.get(where), rows_b.get(where)),
            rows_a.get(where),
            rows_b.get(where),
        )
        for where in rows_a.keys() | rows_b.keys()
    ]
    return sorted(
        changes, key=lambda c: (ORDER[c.change], -max(c.bytes_a, c.bytes_b), c.key, c.slot)
    )


def _change(a: RunSite | None, b: RunSite | None) -> Change:
    if a is None:
        return "appeared"
    if b is None:
        return "went"
    if _largest(a) == _largest(b):
        return "same"
    return "grew" if _largest(b) > _largest(a) else "shrank"
