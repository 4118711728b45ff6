"""What can still fail under a reserve: the sites that get less than they can ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wstrace.planning.cost import smallest, threshold
from wstrace.units import human
from wstrace.vllm.arena import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wstrace.known_sites.given import Caller
    from wstrace.reserve.schema import SiteReserve
    from wstrace.trace.records import Limit


@dataclass(frozen=True)
class Failing:
    """A site that can ask for more than it gets; `observed`: nobody knows how much more."""

    site: str
    why: str
    observed: bool


def can_fail(
    given: Sequence[SiteReserve],
    wanted: Mapping[str, int],
    requests: Mapping[str, tuple[int, SiteReserve]],
    limits: Mapping[str, Limit],
    arena: int,
    caller: Caller,
) -> list[Failing]:
    """What is to be said of each site that can ask for more than it gets, or gets less than the
    bytes that its cover `wanted`; it shares an `arena` that other sites may have made larger.
    `requests` are the sites' needs, and the sites with one request's formula."""
    told = []
    for reserve in given:
        need, request = requests[reserve.site]
        parts = [_cut(reserve, wanted.get(reserve.site, 0), caller)]
        if reserve.cover != "bound":
            parts.append(_shortage(reserve, request, need, limits, arena))
        if any(parts):
            why = " ".join(part for part in parts if part)
            told.append(Failing(reserve.site, why, request.grade == "observed"))
    return told


def _cut(reserve: SiteReserve, wanted: int, caller: Caller) -> str | None:
    if wanted <= reserve.bytes:
        return None
    size = human(reserve.bytes)
    return f"{caller.cover} asks for {human(wanted)}, {caller.budget} cuts it to {size}."


def _shortage(
    reserve: SiteReserve,
    request: SiteReserve,
    need: int,
    limits: Mapping[str, Limit],
    arena: int,
) -> str | None:
    size = reserve.bytes
    least = smallest(request, limits)
    if not arena or (least is not None and least > arena):
        needs = f", its smallest request needs {human(least)}" if least else ""
        return f"gets {human(size)}{needs}: nothing fits, no request of this site is safe."
    if request.grade == "observed":
        return f"{human(size)} is only what was seen or given; a larger request can still fail."
    if need <= size:
        return None
    above = "that" if arena - size < ALIGNMENT else f"the arena's {human(arena)}"
    return (
        f"gets {human(size)}, can need {human(need)} ({request.grade}); a request above "
        f"{above} still fails{threshold(request, arena, limits)}."
    )
