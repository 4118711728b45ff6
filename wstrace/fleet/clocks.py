"""Hosts of one run whose clocks do not agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.run_file import RunFile

FAR: Final = 30 * 60 * 10**9
"""Nanoseconds between the starts of two hosts of a run from which a clock is taken to be wrong:
they wait for each other."""
EARLIEST: Final = 1_735_689_600 * 10**9
"""2025-01-01, ns since 1970: 0.13.0, the first vLLM with a workspace, is of that year."""


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
    if len(starts) >= 3:
        return round(median(starts.values()))
    if meta is not None and meta.started_ns:
        return meta.started_ns
    return min(starts.values(), default=0)


def clock_words(starts: Mapping[str, int], meta: RunFile | None) -> list[str]:
    """A sentence for each host whose clock is far from those of most, and one where there is no
    such majority, or run.json's clock is far from it."""
    if not starts:
        return []
    told = meta.started_ns if meta is not None else 0
    most = _majority(starts, told)
    if most is None:
        return [_disagree(starts)]
    words = [
        f"{host} started {_apart(start - most)} {'after' if start > most else 'before'} the "
        "rest: its clock is wrong, or it joined then"
        for host, start in sorted(starts.items())
        if abs(start - most) > FAR
    ]
    if told and abs(told - most) > FAR:
        words.append(
            f"run.json and the workers' hosts are {_apart(told - most)} apart: a clock is wrong"
        )
    if most < EARLIEST:
        words.append("its clocks say a time before any vLLM that has a workspace")
    return words


def _majority(starts: Mapping[str, int], told: int) -> int | None:
    """The time that most hosts began near, ns; of two that differ run.json decides."""
    times = sorted(starts.values())
    if len(times) < 3 and times[-1] - times[0] > FAR:
        return told if any(abs(one - told) <= FAR for one in times) else None
    middle = round(median(times)) if len(times) >= 3 else times[0]
    near = sum(abs(one - middle) <= FAR for one in times)
    return middle if 2 * near > len(times) else None


def _disagree(starts: Mapping[str, int]) -> str:
    apart = _apart(max(starts.values()) - min(starts.values()))
    if len(starts) == 2:
        return f"the clocks of {' and '.join(sorted(starts))} are {apart} apart"
    return f"the clocks of its {len(starts)} hosts do not agree: they are up to {apart} apart"


def _apart(nanoseconds: int) -> str:
    minutes = round(abs(nanoseconds) / 60e9)
    return f"{minutes // 60} h {minutes % 60} min"
