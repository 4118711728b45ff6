"""What a verdict rests on: which processes, how far each went, how it ended, and what was lost.

Made once for a run and shown by every output. "Clean" says no more than was seen: where an
escape could hide behind an end, `doubts` has the reason, and the run is inconclusive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from wstrace.errors import one_line
from wstrace.runs.worker import Worker, rank_name
from wstrace.trace.reader import ProcessTrace, Trace
from wstrace.trace.records import End, Failure, Note, Phase, PhaseChange
from wstrace.trace.run_file import RunFile
from wstrace.units import plural
from wstrace.versions import release_of

SHOWN: Final = 10
STOPPED: Final = (130, 143)
"""SIGINT and SIGTERM, by which a server is stopped in order. SIGKILL (137) lets nothing end."""
NO_END: Final = "run.json has no end: the command still ran, or wstrace was killed"
NO_CODE: Final = "run.json has no exit code: how the command ended is not known"
MUCH_EARLIER: Final = 30 * 10**9
"""Nanoseconds by which a worker's last record is too early beside its peers': a counter is
written every second while the server steps, and the workers of an engine step together."""
ORDER: Final[tuple[Phase, ...]] = tuple(
    phase for phase in get_args(Phase) if phase not in ("unlocked", "sleep")
)
"""The phases of a worker in their order, but those amid serving (sleep, unlocked)."""
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
# an entry of run.json's `living`
# vLLM 0.13.0 to 0.33.0: VLLM is envs.VLLM_PROCESS_NAME_PREFIX, the head of each process's
# title
# matches: 'pid 41 (VLLM::EngineCore)'
_LIVING: Final = re.compile(r"pid (\d{1,10}) ")
STARTS: Final[dict[Phase, str]] = {
    "load": "loading",
    "profile": "profiling",
    "graph-estimate": "the graph estimate",
    "kv-init": "making the KV cache",
    "warmup": "warm-up",
    "capture": "graph capture",
    "post-lock-warmup": "warm-up",
}
"""The phases of a start, in words."""


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
    names = {id(w.process): _name(w) for w in workers}
    notes = [r.text for p in trace.processes for r in p.events if isinstance(r, Note)]
    return RestsOn(
        processes=tuple(_process(p, names.get(id(p))) for p in trace.processes),
        command=_command(trace),
        release=_release(workers),
        beyond=_beyond(workers, outlived),
        recorder=tuple(dict.fromkeys(notes)),
        doubts=tuple(dict.fromkeys([*trace.doubts, *_doubts(trace, workers, names, notes)])),
    )


def _name(worker: Worker) -> str:
    alone = f"rank {worker.ranks.rank or 0}"
    return rank_name(worker.ranks, worker.world) or alone


def _process(process: ProcessTrace, name: str | None) -> Process:
    phases = [r.phase for r in process.events if isinstance(r, PhaseChange)]
    role = process.header.role or "process"
    return Process(
        name=name or f"{role} {process.header.pid or ''}".rstrip(),
        worker=name is not None,
        records=len(process.records),
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
    if not ended(meta):
        return NO_END
    if meta.exit_code is None:
        return NO_CODE
    living = f"; of its processes lived on: {', '.join(meta.living[:8])}" if meta.living else ""
    return f"the command ended with exit code {meta.exit_code}{living}"


def ended(meta: RunFile) -> bool:
    """Whether run.json says how its command ended."""
    return meta.ended is not None or meta.exit_code is not None


def _beyond(workers: Sequence[Worker], outlived: int) -> str:
    """What the end of the run, or that it lived on, says of the rest."""
    step = died_at(workers)
    if step is not None:
        return f"the run died at step {step}; sites behind it were not seen"
    return f"it survived {plural(outlived, 'escape')} (grow)" if outlived else ""


def _release(workers: Sequence[Worker]) -> str:
    """Each release among the workers, and what one that was not checked is taken for."""
    texts = sorted({w.header.vllm or "" for w in workers})
    return ", ".join(release_of(text).taken_for or f"vLLM {text}" for text in texts)


def start_died(process: ProcessTrace) -> str:
    """`warm-up ended with ImportError: ...` of a worker whose start raised; else empty."""
    phase: Phase = "init"
    told = ""
    for change in process.events:
        if not isinstance(change, PhaseChange):
            continue
        if change.phase == "serving":
            told = ""
        elif change.error and phase in STARTS:
            told = f"{STARTS[phase]} ended with {one_line(change.error)}"
        phase = change.phase
    return told


def _doubts(
    trace: Trace, workers: Sequence[Worker], names: dict[int, str], notes: Sequence[str]
) -> Iterator[str]:
    if workers and (code := failed(trace)) is not None:
        yield f"the command ended with exit code {code}: what happened at its end was not seen"
    yield from filter(None, (_torn(p, names.get(id(p))) for p in trace.processes))
    yield from _endless(trace, workers, names)
    if trace.meta is not None and ended(trace.meta) and trace.meta.exit_code is None:
        yield NO_CODE
    yield from _vanished(workers, names)
    yield from _stopped_early(workers, names)
    yield from _memory_outside(trace)
    yield from _lived_on(trace, workers, names)
    for note in notes:
        if _concerns(note):
            yield f"the recorder failed where a request or a lock may be lost ({note})"


def _endless(trace: Trace, workers: Sequence[Worker], names: dict[int, str]) -> Iterator[str]:
    """A run.json without an end, where a worker may have gone on after its last record."""
    if trace.meta is None or ended(trace.meta):
        return
    open_ = [names[id(w.process)] for w in workers if not w.ended and not _shut_down(w)]
    if open_:
        named = ", ".join(open_[:8]) + (" ..." if len(open_) > 8 else "")
        yield f"{NO_END}: what {named} did after its last record was not seen"


def _shut_down(worker: Worker) -> bool:
    """Whether its last phase is shutdown: an engine may end it before it writes its end."""
    return bool(worker.phases) and worker.phases[-1].phase == "shutdown"


def _torn(process: ProcessTrace, worker: str | None) -> str:
    """What a cut line of a worker's file means; the recorder's last word is the trace's."""
    if process.cut and worker:
        return (
            f"the last record of {worker} is cut: what came after it is lost, "
            "and may have been a refusal"
        )
    return ""


def _lived_on(trace: Trace, workers: Sequence[Worker], names: dict[int, str]) -> Iterator[str]:
    """Workers that went on after the command: the trace may not be whole yet."""
    living = trace.meta.living if trace.meta else []
    pids = {int(found[1]) for text in living if (found := _LIVING.match(text))}
    left = [names[id(w.process)] for w in workers if w.header.pid in pids and not w.ended]
    if left:
        named = ", ".join(left[:8])
        yield f"{named} lived on after the command: what came then may not be in this trace"


def failed(trace: Trace) -> int | None:
    """The exit code of a command that did not end in order; None where it did."""
    code = trace.meta.exit_code if trace.meta else None
    return None if code in (None, 0, *STOPPED) else code


def _vanished(workers: Sequence[Worker], names: dict[int, str]) -> Iterator[str]:
    """Workers end together: where one wrote its end and another did not, that one was lost."""
    whole = [w for w in workers if w.ended]
    lost = [w for w in workers if not w.ended and not w.process.cut]
    lost = [w for w in lost if not w.header.parent]  # a forked child may end without a word
    if whole and lost:
        named = ", ".join(names[id(w.process)] for w in lost[:8])
        yield f"{named} wrote no end, where {plural(len(whole), 'other worker')} did"


def _stopped_early(workers: Sequence[Worker], names: dict[int, str]) -> Iterator[str]:
    """Workers whose files stop in an earlier phase than their peers', or much earlier in time.

    Only of one engine (a data-parallel rank) and without a refusal, which tells its own end.
    """
    for worker in workers:
        if worker.ended or worker.process.cut or worker.header.parent or worker.failures:
            continue
        peers = [w for w in workers if w is not worker and w.ranks.dp == worker.ranks.dp]
        peers = [w for w in peers if not w.header.parent]
        name, last = names[id(worker.process)], _last_phase(worker)
        reached = max(map(_last_phase, peers), default=last)
        newest = max((w.process.last_ns for w in peers), default=0)
        if last < reached:
            yield f"{name} ends in {ORDER[last]}, where its peers went on to {ORDER[reached]}"
        elif not _shut_down(worker) and newest - worker.process.last_ns > MUCH_EARLIER:
            early = (newest - worker.process.last_ns) / 1e9
            yield f"{name} ends {early:,.0f} s before its peers"


def _last_phase(worker: Worker) -> int:
    """The place in ORDER of its last phase; amid serving where ORDER does not have it."""
    last = worker.phases[-1].phase if worker.phases else "init"
    return ORDER.index(last) if last in ORDER else ORDER.index("serving")


def _memory_outside(trace: Trace) -> Iterator[str]:
    """Memory that ran out in a file without a worker record."""
    for process in trace.processes:
        for record in process.events if process.worker is None else ():
            if isinstance(record, Failure) and record.kind == "memory":
                yield f"vLLM ran out of memory for a request for workspace in {record.phase}"


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
