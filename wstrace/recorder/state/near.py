"""Sites that come near their arena, known as a step is admitted: WSTRACE_WARN_AT.

The formula of a site gives its bytes from what the scheduler planned, before the layer asks.
It is evaluated only where a step is larger than those before by a 64th, in tokens, requests or
computed tokens, and at every 256th step: some hundred times in a server's life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wstrace.reserve.schema import SiteReserve
    from wstrace.trace.records import Limit

EVERY: Final = 256
GRAIN: Final = 64


@dataclass(frozen=True)
class Near:
    """A site whose request of this step needs `bytes` of an arena of `arena` bytes, at these
    values of what drives it; `worst` is its worst case."""

    site: str
    bytes: int
    arena: int
    at: dict[str, int]
    worst: int


@dataclass
class NearState:
    """The sites that are looked at, and when to look next."""

    share: float
    tell: Callable[[Any], object] = id
    sites: dict[str, SiteReserve] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    at_tokens: int = 0
    at_reqs: int = 0
    at_computed: int = 0
    steps: int = 0

    def add(self, sites: Iterable[SiteReserve]) -> None:
        """Look at these too, as far as their formula follows the scheduler."""
        for site in sites:
            self.known.add(site.site)
            if site.formula and site.drivers:
                self.sites[site.site] = site

    def is_new(self, site: str) -> bool:
        """Whether the site was never seen; from now on it was."""
        new = site not in self.known
        self.known.add(site)
        return new

    def step(self, output: Any, tokens: int, reqs: int, computed: int) -> None:
        """A step is admitted: a few comparisons, and seldom a look."""
        self.steps += 1
        if (
            tokens <= self.at_tokens
            and reqs <= self.at_reqs
            and computed <= self.at_computed
            and self.steps % EVERY
        ):
            return
        self.at_tokens = max(self.at_tokens, tokens + tokens // GRAIN)
        self.at_reqs = max(self.at_reqs, reqs + reqs // GRAIN)
        self.at_computed = max(self.at_computed, computed + computed // GRAIN)
        if self.sites:
            self.tell(output)

    def found(self, step: Any, limits: Mapping[str, Limit], arena: int) -> list[Near]:
        """The sites that come near in `step`, each once; `arena` is what they have, bytes."""
        from wstrace.bounds.evidence import rows_of
        from wstrace.reserve.evaluate import numeric

        numbers, every = numeric(limits), rows_of(step)
        found = [_near(site, every, numbers, arena) for site in self.sites.values()]
        near = [one for one in found if one is not None and one.bytes >= self.share * arena]
        for one in near:
            del self.sites[one.site]
        return near


def _near(
    site: SiteReserve, rows: Iterable[Mapping[str, int]], numbers: Mapping[str, int], arena: int
) -> Near | None:
    """The largest request of the step; None where a quantity is none of the scheduler's."""
    from wstrace.expr import expression
    from wstrace.expr.tree import unnumbered

    formula = expression.parse(site.formula or "0")
    best: Near | None = None
    for row in rows:
        values = {name: row.get(unnumbered(name)) for name in site.drivers}
        at = {name: value for name, value in values.items() if value is not None}
        known = {**numbers, **site.constants, **at}
        if len(at) == len(values) and formula.names <= known.keys():
            needs = formula.evaluate(known)
            if best is None or needs > best.bytes:
                best = Near(site.site, needs, arena, at, site.bytes)
    return best
