"""Which drivers of a request the profile run cannot reach: why it may grow only in service.

The profile run is one step of max_num_batched_tokens tokens of new requests: no token is
cached, there is no attention metadata, no draft is verified, and it runs in the first slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from wstrace.audit.covering import CACHED
from wstrace.audit.reaching import BEFORE_LOCK, Phase, WayIn
from wstrace.audit.related import Placed
from wstrace.slicer.static import AskedSpecs, Project

# matches: "num_speculative_tokens"
_DRAFTS: Final = re.compile(r"spec_decode|speculative|num_spec|draft|mtp_")
# matches: "has_initial_state"
_PREFIX: Final = re.compile(r"prefix|cached_len|context_len|num_context|initial_state|chunked")


def unreached(
    placed: Placed, specs: AskedSpecs, reserved: Sequence[Placed], project: Project
) -> tuple[str, ...]:
    """What a serving request needs that no profile run has, in the words of docs/audit.md.

    `reserved` are the reservations that its match rests on.
    """
    phases = {way.phase for way in placed.ways}
    roles = {leaf.role for leaf in specs.leaves.values() if leaf.role}
    found = []
    if roles & CACHED:
        found.append("computed tokens")
    if Phase.STEP in phases and not phases & BEFORE_LOCK:
        found.append("real metadata")
    if _only(placed.ways, _DRAFTS) or _named(specs, _DRAFTS):
        found.append("speculative steps")
    if "num_computed_tokens" in roles or _only(placed.ways, _PREFIX):
        found.append("prefix-cache turns")
    found += _slots(reserved, project)
    if _second_callers(placed, reserved):
        found.append("second callers")
    return tuple(found)


def _only(ways: Sequence[WayIn], words: re.Pattern[str]) -> bool:
    """Whether every way has a condition of this kind."""
    return bool(ways) and all(
        any(guard.holds and words.search(guard.text) for _, guard in way.guards) for way in ways
    )


def _named(specs: AskedSpecs, words: re.Pattern[str]) -> bool:
    return any(words.search(leaf.source) for leaf in specs.leaves.values())


def _slots(reserved: Sequence[Placed], project: Project) -> Iterator[str]:
    """A constructor reserves in the first slot and lane alone."""
    phases = {way.phase for r in reserved for way in r.ways}
    if not phases or phases != {Phase.BUILT}:
        return
    if project.mentioning("enable_dbo"):
        yield "DBO slots"
    if project.mentioning("def use_workspace_lane"):
        yield "draft lanes"


def _second_callers(placed: Placed, reserved: Sequence[Placed]) -> bool:
    """Whether other modules call the function than those that the reservation knows."""
    callers = {way.modules[1] for way in placed.ways if len(way.modules) > 1}
    outside = callers - {placed.site.place.module}
    known = {m for r in reserved for way in r.ways for m in way.modules}
    steps = any(way.phase not in BEFORE_LOCK for way in placed.ways)
    return steps and bool(reserved) and bool(outside - known)
