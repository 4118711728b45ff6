"""The guard's counters as a file that Prometheus's node_exporter reads, where one was named.

One file a worker: `guard.prom` becomes `guard-rank0.prom`, or `guard-dp1-rank0.prom` under
data parallelism. It is written anew, whole, at each growth: that is seldom.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from wstrace.files import write_whole
from wstrace.recorder.state.guard_state import GuardState
from wstrace.trace.records import Ranks

ENDING: Final = ".prom"
"""Of a file that was named without one."""
GROWTHS: Final = "wstrace_guard_growths_total"
REFUSED: Final = "wstrace_guard_refused_total"
LARGEST: Final = "wstrace_guard_site_bytes"
NEAR: Final = "wstrace_site_near_bytes"
HELP: Final = {
    GROWTHS: ("counter", "Growths that the guard made after the lock."),
    REFUSED: ("counter", "Requests that the guard could not meet."),
    LARGEST: ("gauge", "Largest request of a site that outgrew its arena."),
    NEAR: ("gauge", "What the first step needed that brought a site near its arena."),
}
# matches: "-dp1-rank0"
_OF_RANK: Final = re.compile(r"(?:-dp\d+)?-rank\d+")
MOST_SITES: Final = 100
"""Rows of a metric in the file; a server has a dozen sites."""


def write_counters(path: str, ranks: Ranks, guard: GuardState) -> None:
    """Write the file of this worker beside its place, and rename it. Raises OSError."""
    text = "\n".join(lines(ranks, guard)) + "\n"
    write_whole(text.encode(), Path(file_of_rank(path, ranks)))


def file_of_rank(path: str, ranks: Ranks) -> str:
    """`guard.prom` of this worker: `guard-rank0.prom`."""
    stem, ending = os.path.splitext(path)
    dp = f"-dp{ranks.dp}" if ranks.dp else ""
    return f"{stem}{dp}-rank{ranks.rank or 0}{ending or ENDING}"


def files_of_ranks(path: Path) -> list[Path]:
    """What `file_of_rank` named of this path and is there now, by name."""
    stem, ending = os.path.splitext(path.name)
    ending = ending or ENDING
    return sorted(
        file
        for file in path.parent.glob("*")
        if file.name.startswith(stem)
        and file.name.endswith(ending)
        and _OF_RANK.fullmatch(file.name, len(stem), len(file.name) - len(ending))
    )


def lines(ranks: Ranks, guard: GuardState) -> Iterator[str]:
    """The counters in Prometheus's text form."""
    rank = {"dp": ranks.dp or 0, "pp": ranks.pp or 0, "tp": ranks.tp or 0}
    rows: dict[str, list[str]] = {name: [] for name in HELP}
    for (site, slot), met in list(guard.by_site.items())[:MOST_SITES]:
        labels = {"site": site, **rank, "ubatch": slot.ubatch, "lane": slot.lane}
        rows[GROWTHS].append(_row(GROWTHS, labels, met.growths))
        rows[REFUSED].append(_row(REFUSED, labels, met.refused))
        rows[LARGEST].append(_row(LARGEST, labels, met.bytes))
    for site, size in list(guard.near.items())[:MOST_SITES]:
        rows[NEAR].append(_row(NEAR, {"site": site, **rank}, size))
    for name, (kind, told) in HELP.items():
        yield from (f"# HELP {name} {told}", f"# TYPE {name} {kind}", *rows[name])


def _row(name: str, labels: dict[str, Any], value: int) -> str:
    inside = ",".join(f'{key}="{_escaped(str(v))}"' for key, v in labels.items())
    return f"{name}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
