"""What `WSTRACE_GUARD` has done in this process: growths by site, and what it may still do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wstrace.trace.records import Slot


class Outgrown(NamedTuple):
    """What was asked above the lock, and by whom: `site` is `file:function`."""

    site: str
    slot: Slot


@dataclass
class Met:
    """Growths and refusals of one site and slot, and its largest request in bytes."""

    growths: int = 0
    refused: int = 0
    bytes: int = 0


@dataclass
class GuardState:
    """The guard of this process.

    `least` is what every arena of the manager has, in bytes: a request within it is not looked
    at. `before` is what arenas, and old ones kept alive, took at the first growth (None: there
    was none). `why` tells why the last growth was not made. `told` are the sites that the log
    has named, once each. `near`: bytes of the step that brought a site near its arena.
    """

    least: int = 0
    before: int | None = None
    why: str = ""
    by_site: dict[Outgrown, Met] = field(default_factory=dict)
    told: set[tuple[str, bool]] = field(default_factory=set)
    near: dict[str, int] = field(default_factory=dict)

    def remade(self) -> None:
        """There is a new manager, or none: its arenas are not known."""
        self.least, self.before = 0, None

    def sizes(self, sizes: list[int]) -> None:
        """The arenas of all slots as they are now; they never shrink."""
        self.least = min(sizes, default=0)

    def count(self, outgrown: Outgrown, size: int, grew: bool) -> bool:
        """Count one growth, or a refusal; True where the log has to tell of it."""
        met = self.by_site.setdefault(outgrown, Met())
        met.growths += grew
        met.refused += not grew
        met.bytes = max(met.bytes, size)
        new = (outgrown.site, grew) not in self.told
        self.told.add((outgrown.site, grew))
        return new
