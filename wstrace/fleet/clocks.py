"""Hosts of one run whose clocks do not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from wstrace.trace.reader import ProcessTrace
from wstrace.trace.run_file import RunFile

FAR: Final = 30 * 60 * 10**9
"""Nanoseconds between the starts of two hosts of a run from which a clock is taken to be wrong:
they wait for each other."""


def host_starts(processes: Sequence[ProcessTrace]) -> dict[str, int]:
    """The first time of each host, ns since 1970 by its own clock."""
    starts: dict[str, int] = {}
    for process in processes:
        header = process.header
        if header.wall_ns:
            starts[header.host] = min(header.wall_ns, starts.get(header.host, header.wall_ns))
    return starts


def started_ns(starts: Mapping[str, int], meta: RunFile | None) -> int:
    """When the run began, by most of its clocks; 0 where nothing says it.

    Of two hosts neither is the majority: run.json decides, else the earlier one.
    """
    if len(starts) >= 3 or meta is None or not meta.started_ns:
        return round(
            median(starts.values()) if len(starts) >= 3 else min(starts.values(), default=0)
        )
    return meta.started_ns


def clock_words(starts: Mapping[str, int], meta: RunFile | None) -> list[str]:
    """A sentence for each host whose clock is far from the others'."""
    if not starts:
        return []
    told = meta is not None and meta.started_ns
    if len(starts) == 2 and not told:
        (one, first), (other, second) = sorted(starts.items())
        if abs(first - second) <= FAR:
            return []
        return [f"the clocks of {one} and {other} are {_apart(first - second)} apart"]
    begun = started_ns(starts, meta)
    return [
        f"{host} started {_apart(start - begun)} {'after' if start > begun else 'before'} the "
        "rest: its clock is wrong, or it joined then"
        for host, start in sorted(starts.items())
        if abs(start - begun) > FAR
    ]


def _apart(nanoseconds: int) -> str:
    minutes = round(abs(nanoseconds) / 60e9)
    return f"{minutes // 60} h {minutes % 60} min"
