"""Fold the many reports of one failure into one incident.

A worker logs the message, its engine repeats it, the API server a third time, and the
person pastes it once more: the same site and sizes, in ranks of which one names more.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wstrace.triage.ingest.interleaved import STREAM
from wstrace.triage.ingest.ranks import merged, named, of_one_process

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wstrace.triage.extract.facts import Origin, PrintedSize, Refusal

# vLLM 0.13.0 to 0.33.0: the processes above the workers
# matches: 'EngineCore_DP0 pid=9'
_ABOVE: Final = re.compile(r"EngineCore|APIServer|ApiServer|DPCoordinator")


def incidents(refusals: Iterable[Refusal]) -> list[Refusal]:
    """One refusal for each failure and rank, in the order of their lines."""
    kept: dict[str | None, list[Refusal]] = {}
    for refusal in sorted(refusals, key=_fullness, reverse=True):
        size = refusal.required.text if refusal.required else None
        places = [kept.setdefault(size, [])] if size else list(kept.values())
        if not any(_fold_in(refusal, place) for place in places):
            kept.setdefault(size, []).append(refusal)
    found = _of_known_ranks([refusal for place in kept.values() for refusal in place])
    return sorted(found, key=lambda refusal: refusal.origin.at)


def _of_known_ranks(found: list[Refusal]) -> list[Refusal]:
    """Of messages whose process is unknown, one a site: the one that asked for most."""
    largest: dict[object, Refusal] = {}
    for refusal in found:
        if refusal.origin.stream == STREAM:
            site = refusal.kind, refusal.file, refusal.function
            other = largest.setdefault(site, refusal)
            largest[site] = max(other, refusal, key=_asked)
    return [r for r in found if r.origin.stream != STREAM] + list(largest.values())


def _asked(refusal: Refusal) -> int:
    return (refusal.required.bytes if refusal.required else 0) or 0


def _fold_in(refusal: Refusal, place: list[Refusal]) -> bool:
    for index, other in enumerate(place):
        if _same(refusal, other):
            place[index] = _folded(other, refusal)
            return True
    return False


def _fullness(refusal: Refusal) -> tuple[int, int, int]:
    """How much a report says; of equal ones the first comes first."""
    said = (refusal.file, refusal.function, refusal.required, refusal.current, refusal.name)
    known = sum(item is not None for item in said)
    return known, len(named(refusal.origin.ranks)), -refusal.origin.line


def _same(less: Refusal, more: Refusal) -> bool:
    return (
        less.kind == more.kind
        and less.detail == more.detail
        and less.name in (None, more.name)
        and less.file in (None, more.file)
        and less.function in (None, more.function)
        and _fits(less.required, more.required)
        and _fits(less.current, more.current)
        and (
            of_one_process(less.origin.ranks, more.origin.ranks)
            or _repeats(less.origin, more.origin)
        )
    )


def _repeats(one: Origin, other: Origin) -> bool:
    """Whether an engine or a server tells what its worker said: `EngineCore_DP0` is named so
    in releases without data parallelism too, and its worker is not."""
    if not (_ABOVE.match(one.label) or _ABOVE.match(other.label)):
        return False
    first, second = named(one.ranks), named(other.ranks)
    return all(second.get(group, rank) == rank for group, rank in first.items())


def _fits(less: PrintedSize | None, more: PrintedSize | None) -> bool:
    return less is None or (more is not None and less.text == more.text)


def _folded(more: Refusal, less: Refusal) -> Refusal:
    return replace(
        more,
        origin=replace(more.origin, ranks=merged(less.origin.ranks, more.origin.ranks)),
        frames=more.frames or less.frames,
        line=more.line if more.line is not None else less.line,
        layer=more.layer or less.layer,
        times=more.times + less.times,
    )
