"""What a verdict rests on: which processes, how far each went, how it ended, and what was lost.

Made once for a run and shown by every output. "Clean" says no more than was seen: where an
escape could hide behind an end, `doubts` has the reason, and the run is inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wstrace.runs.worker import Worker, rank_name
from wstrace.trace.reader import ProcessTrace, Trace
from wstrace.trace.records import End, Note, PhaseChange
from wstrace.units import plural

STOPPED: Final = (130, 143)
"""SIGINT and SIGTERM, by which a server is stopped in order. SIGKILL (137) lets nothing end."""
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
"""What the recorder may fail at without losing a request, a failure, a lock or a phase."""


@dataclass(frozen=True)
class Process:
    """One process: its name, how much it wrote, where it stood and how its file ends."""

    name: str
    worker: bool
    records: int
    seconds: float
    phase: str
    end: str

    @property
    def text(self) -> str:
        """`tp1: 812 records over 12.30 s, last in serving, ended in order`."""
        stood = f", last in {self.phase}" if self.phase else ""
        count = plural(self.records, "record")
        return f"{self.name}: {count} over {self.seconds:,.2f} s{stood}, {self.end}"


@dataclass(frozen=True)
class RestsOn:
    """All that a verdict rests on. `doubts` are what makes it inconclusive."""

    processes: tuple[Process, ...]
    command: str
    release: str
    recorder: tuple[str, ...]
    doubts: tuple[str, ...]

    def lines(self) -> list[str]:
        """One line a process, then the command, the release and the recorder's own words."""
        words = [process.text for process in self.processes]
        words += [text for text in (self.command, self.release) if text]
        return words + [f"the recorder noted: {note}" for note in self.recorder]


def rests_on(trace: Trace, workers: Sequence[Worker]) -> RestsOn:
    """What the verdict of a run rests on."""
    names = {id(w.process): _name(w) for w in workers}
    notes = [r.text for p in trace.processes for r in p.records if isinstance(r, Note)]
    return RestsOn(
        processes=tuple(_process(p, names.get(id(p))) for p in trace.processes),
        command=_command(trace),
        release=", ".join(sorted({f"vLLM {w.header.vllm or '?'}" for w in workers})),
        recorder=tuple(dict.fromkeys(notes)),
        doubts=tuple(dict.fromkeys(_doubts(trace, workers, names, notes))),
    )


def _name(worker: Worker) -> str:
    alone = f"rank {worker.ranks.rank or 0}"
    return rank_name(worker.ranks, worker.init.world) or alone


def _process(process: ProcessTrace, name: str | None) -> Process:
    phases = [r.phase for r in process.records if isinstance(r, PhaseChange)]
    last = max((r.ns for r in process.records), default=process.header.ns)
    role = process.header.role or "process"
    return Process(
        name=name or f"{role} {process.header.pid or ''}".rstrip(),
        worker=name is not None,
        records=len(process.records),
        seconds=max(0, last - process.header.ns) / 1e9,
        phase=phases[-1] if phases else "",
        end=_end(process),
    )


def _end(process: ProcessTrace) -> str:
    if process.cut:
        return "its last record is cut"
    ended = any(isinstance(record, End) for record in process.records)
    return "ended in order" if ended else "no end was written"


def _command(trace: Trace) -> str:
    meta = trace.meta
    if meta is None:
        return ""
    if meta.ended is None:
        return "run.json has no end: the command went on, or wstrace was killed"
    return f"the command ended with exit code {meta.exit_code}"


def _doubts(
    trace: Trace, workers: Sequence[Worker], names: dict[int, str], notes: Sequence[str]
) -> Iterator[str]:
    if workers and (code := failed(trace)) is not None:
        yield f"the command ended with exit code {code}: what happened at its end was not seen"
    for process in trace.processes:
        if process.cut and id(process) in names:
            yield (
                f"the last record of {names[id(process)]} is cut: what came after it is lost, "
                "and may have been a refusal"
            )
    yield from _vanished(workers, names)
    for note in notes:
        if _concerns(note):
            yield f"the recorder failed where a request or a lock may be lost ({note})"


def failed(trace: Trace) -> int | None:
    """The exit code of a command that did not end in order; None where it did."""
    code = trace.meta.exit_code if trace.meta else None
    return None if code in (None, 0, *STOPPED) else code


def _vanished(workers: Sequence[Worker], names: dict[int, str]) -> Iterator[str]:
    """Workers end together: where one wrote its end and another did not, that one was lost."""
    ended = [w for w in workers if w.ended]
    lost = [w for w in workers if not w.ended and not w.process.cut]
    if ended and lost:
        named = ", ".join(names[id(w.process)] for w in lost[:8])
        yield f"{named} wrote no end, where {plural(len(ended), 'other worker')} did"


def _concerns(note: str) -> bool:
    """Whether a note of the recorder is of an error that may have cost evidence.

    A sample of what it matches: `recorder: request: KeyError: 'x'`; what an unknown piece
    lost is unknown, so it counts.
    """
    who, _, rest = note.partition(": ")
    return who == "recorder" and rest.partition(": ")[0] not in BESIDE_THE_POINT


def died_at(workers: Iterable[Worker]) -> int | None:
    """The step of the first refusal that nothing survived; None where the run lived on."""
    fatal = [f for w in workers for f in w.failures if not f.survived]
    return min((f.step.index if f.step else 0 for f in fatal), default=None)


def before_a_worker(trace: Trace) -> str:
    """Why no worker left a trace, where the command's end tells it; else empty."""
    code = failed(trace)
    if code is None:
        return ""
    return f"the command ended with exit code {code} before a worker started"
