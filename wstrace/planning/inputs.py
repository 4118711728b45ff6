"""What a plan is made from: the sites, the engine, and what the user wishes for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wstrace.bounds.bound import Bound
from wstrace.errors import WstraceError, did_you_mean
from wstrace.known_sites.given import COMMAND, Caller
from wstrace.trace.records import Limit, Memory, Slot
from wstrace.trace.site_key import SiteKey
from wstrace.vllm.limits import LAYOUT_NAMES, LIMIT_NAMES

_MOST: Final = 1 << 40


@dataclass(frozen=True)
class SiteBound:
    """One site as the plan takes it: its bound over all ranks and slots, sizes in bytes.

    `largest` is the largest request seen, `p99` the size that 99 % of the different sizes
    seen stay within. `cover` is the choice that an earlier reserve made for it, if any.
    `by_rank` says the bounds of the ranks, in words, where they differ.
    """

    file: str
    function: str
    bound: Bound
    largest: int = 0
    p99: int | None = None
    slots: tuple[Slot, ...] = ()
    cover: str = ""
    by_rank: str = ""

    @property
    def key(self) -> SiteKey:
        """The site."""
        return SiteKey(self.file, self.function)

    @property
    def name(self) -> str:
        """'file:function', as a reserve config names it."""
        return str(self.key)


@dataclass(frozen=True)
class Engine:
    """The engine that a plan is for: its limits, its slots, and what KV sizing did on the rank
    that has least.

    `given` is what its config lacks and the user gave. `counted` are the arena bytes
    that profiling paid for already, by slot; `pinned` those of old arenas that views or graphs
    keep alive. `complete` is False where only part of the limits is known, as from a log: the
    config then has no digest, compares the layout's known integers only (a log's words, `auto`
    or `half`, need not be the engine's), and says that it does not know what is counted.
    """

    limits: dict[str, Limit]
    slots: tuple[Slot, ...] = (Slot(),)
    memory: Memory | None = None
    given: Mapping[str, int | str] = field(default_factory=dict)
    counted: Mapping[Slot, int] = field(default_factory=dict)
    pinned: int = 0
    complete: bool = True


@dataclass(frozen=True)
class Wishes:
    """What the user asked for: `cover` by site, bytes for all slots together, limits to try.

    `caller` is how messages call these.
    """

    cover: Mapping[str, str] | None = None
    budget: int | None = None
    limits: Mapping[str, int | str] | None = None
    caller: Caller = COMMAND


def what_ifs(
    wanted: Mapping[str, int | str], engine: Engine, caller: Caller = COMMAND
) -> Mapping[str, int | str]:
    """The what-ifs among the wanted limits; those given for lack of a number are none.

    Raises WstraceError for an unknown name, an absurd value, or a layout number that was
    recorded otherwise.
    """
    limits = engine.limits
    for name, value in wanted.items():
        if name not in LIMIT_NAMES and name not in limits.keys() | engine.given.keys():
            raise WstraceError(
                f"Unknown limit: {name!r}.",
                did_you_mean(name, LIMIT_NAMES, most=3, cutoff=0.5)
                or "docs/bounds.md lists the limits.",
            )
        if isinstance(value, int) and isinstance(limits.get(name), str | list):
            raise WstraceError(
                f"{name} is no number.", f"Only numbers can be tried with {caller.limits}."
            )
        if isinstance(value, int) and not 0 <= value <= _MOST:
            raise WstraceError(f"{name}={value} is out of range.", "Give 0 to 2**40.")
        if name in LAYOUT_NAMES and limits.get(name) not in (None, value):
            raise WstraceError(
                f"{name} decides shapes: what was recorded with {limits[name]} says nothing "
                f"about {value}.",
                "Record a trace of that engine, or ask `wstrace bound` about a known site.",
            )
        if isinstance(value, str) and value not in (limits.get(name), engine.given.get(name)):
            raise WstraceError(
                f"{name} is no number.", f"Only numbers can be tried with {caller.limits}."
            )
    return {name: value for name, value in wanted.items() if name not in engine.given}


def covers(wanted: Mapping[str, str], sites: Sequence[SiteBound]) -> dict[str, str]:
    """The choice for each named site, by full name.

    Raises WstraceError for a site nobody knows, and for one that two keys give otherwise.
    """
    found: dict[str, str] = {}
    for key, choice in wanted.items():
        named = [s.name for s in sites if s.key.is_called(key)]
        if not named:
            seen = ", ".join(site.name for site in sites) or "none"
            raise WstraceError(f"No site is called {key!r}.", f"The trace has: {seen}.")
        clash = next((n for n in named if found.get(n, choice) != choice), None)
        if clash is not None:
            raise WstraceError(
                f"{clash} is given twice: {found[clash]} and {choice}.", "Keep one of the two."
            )
        found |= dict.fromkeys(named, choice)
    return found
