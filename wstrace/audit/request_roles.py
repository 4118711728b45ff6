"""What a request is there for: a step's scratch, a reservation, or a warm-up's own scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from wstrace.audit.call_sites import CallSite
from wstrace.audit.reaching import BEFORE_LOCK, Phase, WayIn

NEAR: Final = 3
"""A helper is called by the constructor or the profile branch itself, not far below one."""
Role = Literal["serving", "reservation", "warmup", "helper"]
SERVING: Final = frozenset[Role](("serving", "helper"))
"""The roles of requests that a step makes."""


def role_of(site: CallSite, ways: Sequence[WayIn]) -> Role:
    """The role by what the code does, in this order.

    A result that nobody takes is a reservation, wherever it is asked; so is what only
    constructors, reserve hooks and profile branches reach. What only warm-up reaches is
    warm-up's. A function that both a profile branch and a step call is a helper, and so is one
    that makes a persistent buffer. All else serves.
    """
    phases = {way.phase for way in ways}
    if site.discarded:
        return "reservation"
    if site.persistent:
        return "helper"
    if not phases:
        return "serving"
    if phases <= BEFORE_LOCK:
        # A profile branch that takes its result works with it: it warms kernels up.
        warming = any(_warms(name) for way in ways for name in way.functions)
        return "warmup" if warming else "reservation"
    if phases <= {*BEFORE_LOCK, Phase.WARMUP}:
        return "warmup"
    return "helper" if near_phases(site, ways) & BEFORE_LOCK else "serving"


def near_phases(site: CallSite, ways: Sequence[WayIn]) -> set[Phase]:
    """Phases of the short ways that stay in the request's module."""
    own = {site.place.module}
    return {w.phase for w in ways if len(w.functions) <= NEAR and set(w.modules) <= own}


def _warms(name: str) -> bool:
    return "warmup" in name.lower() or "warm_up" in name.lower()
