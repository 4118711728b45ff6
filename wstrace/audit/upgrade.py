"""What an upgrade of vLLM adds, loses and fixes: two audits side by side.

A request is the same in both where its function has the same name, in the same file or in one
that it moved to. Several requests of one function are told apart by their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wstrace.audit.matching import Match
from wstrace.audit.whole import Audit, AuditedSite

UNRESERVED: Final = ("none", "partial", "incidental")
_RANK: Final[dict[Match, int]] = {
    "full": 0,
    "self": 1,
    "na": 1,
    "incidental": 2,
    "partial": 3,
    "none": 4,
}


@dataclass(frozen=True)
class Moved:
    """One request in two releases."""

    before: AuditedSite
    after: AuditedSite


@dataclass(frozen=True)
class Upgrade:
    """Serving requests of release `after` against those of `before`."""

    before: str
    after: str
    added: tuple[AuditedSite, ...]
    lost: tuple[AuditedSite, ...]
    fixed: tuple[Moved, ...]
    worse: tuple[Moved, ...]

    @property
    def unreserved(self) -> tuple[AuditedSite, ...]:
        """What a pull request must not bring: a new request without a reservation, or one that
        lost it."""
        new = tuple(site for site in self.added if site.match in UNRESERVED)
        return (*new, *(pair.after for pair in self.worse))


def upgrade(before: Audit, after: Audit) -> Upgrade:
    """Compare two releases."""
    old, new = _by_name(before.serving), _by_name(after.serving)
    pairs = [(key, found) for key in new if (found := _same(key, old, new)) is not None]
    kept = [Moved(old[found], new[key]) for key, found in pairs]
    known, gone = {key for key, _ in pairs}, {found for _, found in pairs}
    return Upgrade(
        before=before.version,
        after=after.version,
        added=tuple(site for key, site in new.items() if key not in known),
        lost=tuple(site for key, site in old.items() if key not in gone),
        fixed=tuple(m for m in kept if _rank(m.after) < _rank(m.before)),
        worse=tuple(m for m in kept if _rank(m.after) > _rank(m.before)),
    )


_Key = tuple[str, str, int]


def _by_name(sites: Iterable[AuditedSite]) -> dict[_Key, AuditedSite]:
    found: dict[_Key, AuditedSite] = {}
    for site in sites:
        number = 0
        while (site.file, site.enclosing, number) in found:
            number += 1
        found[site.file, site.enclosing, number] = site
    return found


def _same(key: _Key, old: dict[_Key, AuditedSite], new: dict[_Key, AuditedSite]) -> _Key | None:
    """The earlier request: in the same file, else the one that left a file with its name."""
    if key in old:
        return key
    _, enclosing, number = key
    moved = [k for k in old if k[1:] == (enclosing, number) and k not in new]
    return moved[0] if len(moved) == 1 else None


def _rank(site: AuditedSite) -> int:
    return _RANK[site.match]
