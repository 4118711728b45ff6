"""What a verdict rests on: which processes, how far each went, how it ended, and what was lost.

Made once for a run and shown by every output. "Clean" says no more than was seen: where an
escape could hide behind an end, `doubts` has the reason, and the run is inconclusive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wstrace.errors import one_line
from wstrace.findings import ends
from wstrace.findings.ends import NO_CODE, NO_END, died_at, start_died
from wstrace.runs.worker import Worker, rank_label
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.reader import Trace
from wstrace.trace.records import End, Failure, Note, PhaseChange
from wstrace.units import plural
from wstrace.versions import release_of
from wstrace.vllm.command_line import engines_of

SHOWN: Final = 10
BESIDE_THE_POINT: Final = frozenset(
    (
        "slicer",  # a formula: the request stands without it
        "step",  # the scheduler's state beside a request
        "counts",
        "KV sizing",
        "limits",
        "views",  # only with --check-views
        "free memory over ranks",
        "shutdown",
    )
)
"""The pieces of the recorder that may fail without losing a request, a failure, a lock or a
phase; what an unknown piece lost is unknown, so it counts. No other place decides it."""


@dataclass(frozen=True)
class Process:
    """One process: its name, how much it wrote, where it stood and how its file ends."""

    name: str
    worker: bool
    records: int
    seconds: float
    phase: str
    end: str
    died: str = ""

    @property
    def text(self) -> str:
        """`tp1: 812 records over 12.30 s, last in serving, ended in order`."""
        stood = f", last in {self.phase}" if self.phase else ""
        if self.died:
            stood = f", {self.died}"
        count = plural(self.records, "record")
        return f"{self.name}: {count} over {self.seconds:,.2f} s{stood}, {self.end}"


@dataclass(frozen=True)
class RestsOn:
    """All that a verdict rests on. `doubts` are what makes it inconclusive."""

    processes: tuple[Process, ...]
    command: str
    release: str
    beyond: str
    recorder: tuple[str, ...]
    doubts: tuple[str, ...]

    def lines(self) -> list[str]:
        """The command's end, what was not reached, the release, the recorder's own words, and
        one line a process."""
        words = [text for text in (self.command, self.beyond, self.release) if text]
        words += [f"the recorder noted: {note}" for note in self.recorder]
        words += [process.text for process in self.processes]
        return [one_line(text) for text in words]

    def shown(self) -> list[str]:
        """`lines`, as many as an output for people has room for, and how many more."""
        lines = self.lines()
        left = len(lines) - SHOWN
        return lines if left <= 0 else [*lines[:SHOWN], f"{left} more: --format json"]


def rests_on(trace: Trace, workers: Sequence[Worker], outlived: int = 0) -> RestsOn:
    """What the verdict of a run rests on; `outlived`: escapes of which nothing died."""
    names = _names(workers)
    notes = [r for p in trace.processes for r in p.events if isinstance(r, Note)]
    return RestsOn(
        processes=tuple(_process(p, names) for p in trace.processes),
        command=_command(trace),
        release=_release(workers),
        beyond=_beyond(trace, outlived),
        recorder=tuple(dict.fromkeys(note.text for note in notes)),
        doubts=tuple(dict.fromkeys([*trace.doubts, *_doubts(trace, workers, names, notes)])),
    )


def _names(workers: Sequence[Worker]) -> dict[int, str]:
    """By the id of each worker's process; two in one place are told apart by their pids."""
    names = [rank_label(worker.ranks, worker.world) for worker in workers]
    several = Counter(names)
    return {
        id(worker.process): f"{name} (pid {worker.header.pid})" if several[name] > 1 else name
        for worker, name in zip(workers, names, strict=True)
    }


def _process(process: ProcessTrace, names: ends.Names) -> Process:
    phases = [r.phase for r in process.events if isinstance(r, PhaseChange)]
    return Process(
        name=ends.name_of(process, names),
        worker=id(process) in names,
        records=process.totals.records,
        seconds=max(0, process.last_ns - process.header.ns) / 1e9,
        phase=phases[-1] if phases else "",
        end=_end(process),
        died=start_died(process),
    )


def _end(process: ProcessTrace) -> str:
    if process.lost:
        return f"records were lost: {process.lost}"
    if process.cut:
        return "its last record is cut"
    in_order = any(isinstance(record, End) for record in process.events)
    return "ended in order" if in_order else "no end was written"


def _command(trace: Trace) -> str:
    meta = trace.meta
    if meta is None:
        return ""
    if not meta.over:
        return NO_END
    if meta.exit_code is None:
        return NO_CODE
    several = len(trace.commands)
    who = f"the worst of its {several} commands" if several > 1 else "the command"
    told = f"{who} ended with exit code {meta.exit_code}"
    promised = engines_of(meta.words for meta in trace.commands)
    if promised.here < promised.everywhere:
        others = f"{promised.everywhere - promised.here} of {promised.everywhere}"
        told += f"; {others} data-parallel engines are of other commands, with traces of theirs"
    if meta.living:
        told += f"; of its processes lived on: {', '.join(meta.living[:8])}"
    return told


def _beyond(trace: Trace, outlived: int) -> str:
    """What the end of the run, or that it lived on, says of the rest."""
    step = died_at(trace.processes)
    if step is not None:
        return f"the run died at step {step}; sites behind it were not seen"
    return f"it survived {plural(outlived, 'escape')} (grow)" if outlived else ""


def _release(workers: Sequence[Worker]) -> str:
    """Each release among the workers, and what one that was not checked is taken for."""
    texts = sorted({w.header.vllm or "" for w in workers})
    return ", ".join(release_of(text).taken_for or f"vLLM {text}" for text in texts)


def _doubts(
    trace: Trace, workers: Sequence[Worker], names: ends.Names, notes: Sequence[Note]
) -> Iterator[str]:
    yield from ends.doubts(trace, workers, names)
    yield from _memory_outside(trace)
    for note in notes:
        if note.failed_piece and note.failed_piece not in BESIDE_THE_POINT:
            yield f"the recorder failed where a request or a lock may be lost ({note.text})"


def _memory_outside(trace: Trace) -> Iterator[str]:
    """Memory that ran out in a file without a worker record."""
    for process in trace.processes:
        for record in process.events if process.worker is None else ():
            if isinstance(record, Failure) and record.kind == "memory":
                yield f"vLLM ran out of memory for a request for workspace in {record.phase}"
