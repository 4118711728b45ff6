"""The picture that `wstrace watch` draws from its state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wstrace.cli.watch.state import ProcessState, RunState, SlotState
from wstrace.trace.records import Slot
from wstrace.trace.run_file import RunFile
from wstrace.units import human, plural

MOST_ROWS: Final = 40


def picture(
    state: RunState,
    run: str | None,
    meta: RunFile | None,
    folder: Path,
    events: int = 6,
) -> RenderableType:
    """Title, a row a process and slot, the latest `events`."""
    processes = state.of_run(run)
    workers = [p for p in processes if p.worker is not None]
    title = f"{run or folder.name} · {status(run, meta, processes)}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    if not workers:
        parts.append(Text("Waiting for the first worker.", style="dim"))
        return Group(*parts)
    parts.append(_table(workers))
    others = len(processes) - len(workers)
    if others:
        parts.append(Text(plural(others, "other process", "other processes"), style="dim"))
    latest = state.news(0, run)[-events:] if events else []
    parts += [_event(text) for text in latest]
    return Group(*parts)


def _event(text: str) -> Text:
    return Text(text, style="red" if ": escape" in text or ": refused" in text else "dim")


def status(run: str | None, meta: RunFile | None, processes: Sequence[ProcessState]) -> str:
    """How far the run is, by its run.json, else by its workers' own last words."""
    if run is None:
        return "no process yet"
    if meta is not None and meta.run == run and meta.over:
        code = "unknown" if meta.exit_code is None else meta.exit_code
        return f"ended, exit code {code}"
    workers = [p for p in processes if p.worker is not None]
    if any(process.refused for process in processes):
        return "engine died"
    if workers and all(worker.ended for worker in workers):
        return "ended"
    if any(worker.ended or worker.phase == "shutdown" for worker in workers):
        return "shutting down"
    return "running"


def _table(workers: list[ProcessState]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("rank", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    several = any(len(worker.slots) > 1 for worker in workers)
    if several:
        table.add_column("slot", no_wrap=True)
    for name in ("step", "arena", "locked", "largest", "grew", "escapes", "refused"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [row for worker in _worst_first(workers) for row in _rows(worker, several)]
    for cells, style in rows[:MOST_ROWS]:
        table.add_row(*cells, style=style)
    if len(rows) > MOST_ROWS:
        table.add_row(f"and {len(rows) - MOST_ROWS} more rows", style="dim")
    return table


def _worst_first(workers: list[ProcessState]) -> list[ProcessState]:
    """Ranks in order while all fit; else those with escapes come first."""
    if len(workers) <= MOST_ROWS:
        return workers
    return sorted(workers, key=lambda p: -p.escapes)


def _rows(worker: ProcessState, several: bool) -> list[tuple[list[str], str]]:
    slots = sorted(worker.slots.items()) or [(Slot(), SlotState())]
    style = "red" if worker.escapes or worker.refused else ""
    rows = []
    for index, (slot, state) in enumerate(slots):
        first = index == 0
        left = [worker.name, _phase(worker)] if first else ["", ""]
        left += [f"{slot.ubatch}, {slot.lane}"] if several else []
        left.append(f"{worker.step:,}" if first else "")
        locked = "-" if state.locked_at is None else human(state.locked_at)
        right = [str(worker.growths), str(worker.escapes), str(worker.refused)]
        asked = human(state.asked) if state.asked else "-"
        rows.append(
            ([*left, human(state.arena), locked, asked, *(right if first else [""] * 3)], style)
        )
    return rows


def _phase(worker: ProcessState) -> str:
    return f"{worker.phase}, ended" if worker.ended else worker.phase
