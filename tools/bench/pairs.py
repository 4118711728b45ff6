"""Calls with and without what is measured, in pairs, and the table of their medians.

A pair is a block of calls with it and a block without, in alternating order, so that a
throttled machine slows both; times are CPU time of the thread, so that a busy one does not
count.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from tools.bench.machine import machine

WARM_CALLS = 20
Block = Callable[[int], float]
Off = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Row:
    """Microseconds a call: without the hooks, and the difference and ratio of each pair."""

    name: str
    off: Sequence[float]
    on: Sequence[float]
    again: Row | None = None

    @property
    def ratios(self) -> list[float]:
        return [on / off for on, off in zip(self.on, self.off, strict=True)]

    @property
    def added(self) -> list[float]:
        return [on - off for on, off in zip(self.on, self.off, strict=True)]

    @property
    def within(self) -> bool:
        """Whether the second run's ratio lies in the middle half of the first one's."""
        low, _, high = quantiles(self.ratios, n=4)
        return self.again is None or low <= median(self.again.ratios) <= high

    def cells(self) -> list[str]:
        low, _, high = quantiles(self.ratios, n=4)
        return [
            self.name,
            f"{median(self.off):.2f}",
            f"{median(self.on):.2f}",
            f"{median(self.added):+.2f}",
            f"{median(self.ratios):.3f}",
            f"{low:.3f} to {high:.3f}",
            *([] if self.again is None else [f"{median(self.again.ratios):.3f}"]),
        ]


def twice(first: Sequence[Row], second: Sequence[Row]) -> list[Row]:
    """The rows of a run, each with its row of the second one."""
    return [replace(row, again=again) for row, again in zip(first, second, strict=True)]


def agreed(names: Sequence[str], outside: Sequence[str]) -> str:
    """Where a second run, right after the first, gave other medians than the first's spread."""
    if not outside:
        return f" A second run's medians are within the first's middle half, all {len(names)}."
    return (
        f" Of {len(names)} medians of a second run these are outside the first's middle half: "
        f"{', '.join(outside)}."
    )


def agreement(rows: Sequence[Row]) -> str:
    """`agreed` for rows."""
    return agreed([row.name for row in rows], [row.name for row in rows if not row.within])


def block(manager: Any, specs: Sequence[Any]) -> Block:
    """Microseconds a call over `calls` calls of the same request."""

    def run(calls: int) -> float:
        ask = manager.get_simultaneous
        for _ in range(WARM_CALLS):
            ask(*specs)
        start = time.thread_time_ns()
        for _ in range(calls):
            ask(*specs)
        return (time.thread_time_ns() - start) / calls / 1000

    return run


def paired(
    off: Off,
    name: str,
    run: Block,
    pairs: int,
    calls: int,
    *,
    on: Off = nullcontext,
    control: bool = False,
) -> Row:
    """`off()` takes away what is measured, `on()` brings it; `control`: off on both sides."""
    found: dict[bool, list[float]] = {False: [], True: []}
    gc.collect()
    gc.disable()
    for number in range(pairs):
        for hooked in (False, True) if number % 2 else (True, False):
            with on() if hooked and not control else off():
                found[hooked].append(run(calls))
    gc.enable()
    return Row(name, found[False], found[True])


def filled(module: Any, num_ubatches: int) -> Any:
    """A manager of CPU tensors whose arena has room for every request here."""
    import torch

    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None  # a growth calls it; it raises without one
    manager = module.WorkspaceManager(torch.device("cpu"), num_ubatches=num_ubatches)
    manager.get_simultaneous(((1 << 20,), torch.uint8))
    return manager


def line(rows: Sequence[Row], pairs: int, calls: int, bench: str = "overhead") -> str:
    """The medians as one line of JSON, microseconds a call."""
    found = {
        row.name: {
            "without_us": round(median(row.off), 3),
            "added_us": round(median(row.added), 3),
            "ratio": round(median(row.ratios), 4),
            **({} if row.again is None else {"again": round(median(row.again.ratios), 4)}),
        }
        for row in rows
    }
    facts = {"bench": bench, "pairs": pairs, "calls": calls, "machine": machine()}
    return json.dumps(facts | {"rows": found})


def table(rows: Sequence[Row], pairs: int, calls: int, more: str = "") -> str:
    head = ["request", "without, us", "with, us", "added, us", "ratio", "middle half"]
    if rows[0].again is not None:
        head.append("again")
        more += agreement(rows)
    lines = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    return "\n".join(
        [
            *("| " + " | ".join(cells) + " |" for cells in lines),
            "",
            f"{pairs} pairs of {calls} calls; CPU time, medians.{more}",
            "",
            machine(),
        ]
    )
