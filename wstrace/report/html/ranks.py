"""The ranks as a grid, and the groups of ranks that look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.coverage import missing_ranks
from wstrace.report.html.names import rank_label, rank_names
from wstrace.runs.worker import Worker
from wstrace.trace.records import Ranks
from wstrace.units import human

State = Literal["escaped", "locked", "unlocked", "unfinished", "missing"]
SHOWN_LARGE: Final = 32
_WORDS: Final[dict[State, str]] = {
    "escaped": "a request escaped",
    "locked": "locked, no escape",
    "unlocked": "served without a lock",
    "unfinished": "ended before the lock",
    "missing": "left no trace",
}


@dataclass(frozen=True)
class Cell:
    """One rank: its name, state, and what it was locked at, by slot, in words."""

    name: str
    state: State
    sizes: str

    @property
    def word(self) -> str:
        """The state as people read it."""
        return _WORDS[self.state]


@dataclass(frozen=True)
class Group:
    """Ranks with the same state and sizes."""

    ranks: str
    count: int
    state: State
    word: str
    sizes: str


@dataclass(frozen=True)
class RankGrid:
    """All cells, the groups of like ranks, and whether cells have room for their sizes."""

    cells: tuple[Cell, ...]
    groups: tuple[Group, ...]
    compact: bool


def rank_grid(run: AnalysedRun) -> RankGrid:
    """Every rank of the run, missing ones last."""
    escaped = {rank for f in run.escapes for rank in f.ranks}
    cells = [(v.ranks, _cell(v, v.ranks in escaped)) for v in run.workers]
    world = run.workers[0].world if run.workers else None
    lost = [(r, Cell(rank_label(r, world), "missing", "")) for r in missing_ranks(run.workers)]
    return RankGrid(
        tuple(cell for _, cell in cells + lost),
        tuple(_groups(cells + lost, world)),
        len(cells) + len(lost) > SHOWN_LARGE,
    )


def _cell(worker: Worker, escaped: bool) -> Cell:
    return Cell(rank_label(worker.ranks, worker.world), _state(worker, escaped), _sizes(worker))


def _state(worker: Worker, escaped: bool) -> State:
    if escaped:
        return "escaped"
    if worker.locks:
        return "locked"
    return "unlocked" if worker.served else "unfinished"


def _sizes(worker: Worker) -> str:
    slots = worker.slots()
    if len(slots) == 1:
        return human(worker.arena(slots[0]))
    named = [f"{s.text}: {human(worker.arena(s))}" for s in slots]
    return "; ".join(named[:8]) + (f" and {len(named) - 8} more" if len(named) > 8 else "")


def _groups(pairs: Sequence[tuple[Ranks, Cell]], world: Ranks | None) -> list[Group]:
    alike: dict[tuple[State, str], list[Ranks]] = {}
    for ranks, cell in pairs:
        alike.setdefault((cell.state, cell.sizes), []).append(ranks)
    return [
        Group(rank_names(members, world), len(members), state, _WORDS[state], sizes)
        for (state, sizes), members in alike.items()
    ]
