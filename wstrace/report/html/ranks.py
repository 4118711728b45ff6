"""The ranks as a grid, and the groups of ranks that look alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Final, Literal

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.coverage import missing_ranks
from wstrace.report.html.names import clean, rank_label, rank_names
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
    """One rank: its name, state, what it was locked at, by slot, in words, and its host.

    `short` is the last number of the name, which tells it from the others of its row. `odd`:
    its sizes are not those of most ranks.
    """

    name: str
    state: State
    sizes: str
    short: str = ""
    host: str = ""
    odd: bool = False

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
class GridRow:
    """Ranks that differ in the last of their groups only: an engine's stage."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class RankGrid:
    """All cells, the groups of like ranks, and whether cells have room for their sizes.

    `rows` are the same cells by engine and stage, for many. `largest` names the rank that was
    locked at most and that at least, where ranks differ.
    """

    cells: tuple[Cell, ...]
    groups: tuple[Group, ...]
    compact: bool
    rows: tuple[GridRow, ...] = ()
    largest: str = ""


def rank_grid(run: AnalysedRun) -> RankGrid:
    """Every rank of the run, missing ones last."""
    escaped = {rank for f in run.escapes for rank in f.ranks}
    cells = [(v.ranks, _cell(v, v.ranks in escaped)) for v in run.workers]
    world = run.workers[0].world if run.workers else None
    lost = [
        (r, Cell(rank_label(r, world), "missing", "", _short(r, world)))
        for r in missing_ranks(run.workers)
    ]
    every = _marked(cells) + lost
    return RankGrid(
        tuple(cell for _, cell in every),
        tuple(_groups(every, world)),
        len(every) > SHOWN_LARGE,
        tuple(_rows(every)),
        _largest(run.workers),
    )


def _marked(cells: Sequence[tuple[Ranks, Cell]]) -> list[tuple[Ranks, Cell]]:
    """With the ranks marked that are locked at other sizes than most of those that are."""
    sizes = Counter(cell.sizes for _, cell in cells if cell.sizes)
    usual = sizes.most_common(1)[0][0] if sizes else ""
    return [(r, replace(c, odd=bool(c.sizes) and c.sizes != usual)) for r, c in cells]


def _cell(worker: Worker, escaped: bool) -> Cell:
    return Cell(
        rank_label(worker.ranks, worker.world),
        _state(worker, escaped),
        _sizes(worker),
        _short(worker.ranks, worker.world),
        clean(worker.header.host),
    )


def _short(ranks: Ranks, world: Ranks | None) -> str:
    """`17` of `dp0 tp17`."""
    return rank_label(ranks, world).rpartition(" ")[2].lstrip(ascii_lowercase)


def _rows(pairs: Sequence[tuple[Ranks, Cell]]) -> list[GridRow]:
    """The cells by the names of their ranks without the last group, each row by its number."""
    rows: dict[str, list[Cell]] = {}
    for _, cell in pairs:
        rows.setdefault(cell.name.rpartition(" ")[0], []).append(cell)
    return [
        GridRow(name, tuple(sorted(cells, key=lambda cell: int(cell.short or 0))))
        for name, cells in rows.items()
    ]


def _largest(workers: Sequence[Worker]) -> str:
    sizes = [(max(map(w.arena, w.slots()), default=0), w) for w in workers]
    if len({size for size, _ in sizes}) < 2:
        return ""
    most = max(sizes, key=lambda pair: pair[0])
    least = min(sizes, key=lambda pair: pair[0])
    told = [f"{rank_label(w.ranks, w.world)} with {human(size)}" for size, w in (most, least)]
    return f"The largest arena is that of {told[0]}, the smallest that of {told[1]}."


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
