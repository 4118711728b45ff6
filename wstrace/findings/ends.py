"""How a run ended: its command, its workers, and what may have come after their last record.

An escape can hide behind an end that nobody saw. What is asked of each worker: its own last
word (an end, a shutdown, a refusal that it died of), else what its command and its peers say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Final, get_args

from wstrace.errors import one_line
from wstrace.runs.lock_epochs import Seen
from wstrace.runs.worker import Worker
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.reader import Trace
from wstrace.trace.records import Failure, Phase, PhaseChange
from wstrace.units import plural

Names = Mapping[int, str]
"""What a worker's process is called, by its id."""
NO_FILE: Final = "no run.json says how this run ended"
NO_END: Final = "run.json has no end: the command still ran, or wstrace was killed"
NO_CODE: Final = "run.json has no exit code: how the command ended is not known"
NO_SIZE: Final = "run.json does not say how much it had written when the command ended"
MUCH_EARLIER: Final = 30 * 10**9
"""Nanoseconds by which a worker's last record is too early beside its peers': a counter is
written every second while the server steps, and the workers of an engine step together."""
UNWRITTEN: Final = 2 * 10**9
"""Nanoseconds of steps that a worker may not have written: a counter's second, and a step."""
ORDER: Final[tuple[Phase, ...]] = tuple(
    phase for phase in get_args(Phase) if phase not in ("unlocked", "sleep")
)
"""The phases of a worker in their order, but those amid serving (sleep, unlocked)."""
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
RAISED: Final = {
    "determine_available_memory": "KV sizing",
    "initialize_from_config": "making the KV cache",
    "capture_model": "graph capture",
}
"""Methods of a start that are no phase of their own where they raise, in words."""


def doubts(trace: Trace, workers: Sequence[Worker], names: Names) -> Iterator[str]:
    """What the ends of the command and of the workers leave open."""
    if workers and (code := failed(trace)) is not None:
        yield f"the command ended with exit code {code}: what happened at its end was not seen"
    yield from filter(None, (_torn(p, names) for p in trace.processes))
    yield from _endless(trace, workers, names)
    if trace.meta is not None and trace.meta.over and trace.meta.exit_code is None:
        yield NO_CODE
    yield from _silent(trace)
    yield from _vanished(workers, names)
    yield from _replaced(workers, names)
    yield from _side_by_side(workers)
    yield from _apart(workers, names)
    yield from _stopped_early(workers, names)
    yield from _lived_on(trace, workers, names)


def failed(trace: Trace) -> int | None:
    """The exit code of a command that did not end in order; None where each did."""
    return trace.meta.failed if trace.meta else None


def before_a_worker(trace: Trace) -> str:
    """Why no worker left a trace, where the command's end tells it; else empty."""
    code = failed(trace)
    if code is None:
        return ""
    return f"the command ended with exit code {code} before a worker started"


def died_at(processes: Iterable[ProcessTrace]) -> int | None:
    """The step of the first refusal that nothing survived, in a worker's file or another;
    None where the run lived on."""
    told = [f for p in processes for f in p.events if isinstance(f, Failure)]
    fatal = [f for f in told if not f.survived]
    return min((f.step.index if f.step else 0 for f in fatal), default=None)


def start_died(process: ProcessTrace) -> str:
    """`warm-up ended with ImportError: ...` of a worker whose start raised; else empty.

    An error passes through several methods: the innermost is named. One that vLLM handled,
    so that its start went on, is none.
    """
    phase: Phase = "init"
    told = error = ""
    for change in process.events:
        if not isinstance(change, PhaseChange):
            continue
        if not change.error and (change.phase == "serving" or change.phase in STARTS):
            told = error = ""
        elif change.error and change.error != error:
            where = RAISED.get(change.why.removesuffix(" raised")) if _starting(phase) else None
            where = where or STARTS.get(phase)
            error = change.error
            told = f"{where} ended with {one_line(error)}" if where else told
        phase = change.phase
    return told


def _starting(phase: Phase) -> bool:
    return phase == "init" or phase in STARTS


def name_of(process: ProcessTrace, names: Names) -> str:
    """The worker's name; of a process without one its role and pid."""
    role = process.header.role or "process"
    return names.get(id(process)) or f"{role} {process.header.pid or ''}".rstrip()


def _torn(process: ProcessTrace, names: Names) -> str:
    """What a cut line means, in any file; the recorder's last word is the trace's."""
    if process.cut:
        return (
            f"the last record of {name_of(process, names)} is cut: what came after it is lost, "
            "and may have been a refusal"
        )
    return ""


def _has_last_word(worker: Worker) -> bool:
    """Whether its own records tell how it ended: an engine may be stopped in its shutdown,
    before it writes its end."""
    return worker.ended or worker.shut_down or died_at([worker.process]) is not None


def _endless(trace: Trace, workers: Sequence[Worker], names: Names) -> Iterator[str]:
    """No run.json, or one without an end, where a worker may have gone on after its last
    record; or one that does not have the size of its file, which may be cut between two
    records. Of a process that is known to live everything is written."""
    left = [w for w in _grown_up(workers) if not _has_last_word(w)]
    if trace.meta is not None and trace.meta.over:
        whole = [w for w in left if w.process.sized or w.process.cut]  # a cut one is told
        unsized = [names[id(w.process)] for w in left if w not in whole]
        if unsized:
            yield f"{_named(unsized)} wrote no end, and {NO_SIZE}"
        return
    open_ = [names[id(w.process)] for w in left if w.header.pid not in trace.alive]
    if open_:
        why = NO_FILE if trace.meta is None else NO_END
        yield f"{why}: what {_named(open_)} did after its last record was not seen"


def _grown_up(workers: Iterable[Worker]) -> list[Worker]:
    """Those that are no forked child, which may end without a word."""
    return [worker for worker in workers if not worker.header.parent]


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")


def _lived_on(trace: Trace, workers: Sequence[Worker], names: Names) -> Iterator[str]:
    """Workers that went on after the command: the trace may not be whole yet."""
    living = trace.meta.living if trace.meta else []
    pids = {int(found[1]) for text in living if (found := _LIVING.match(text))}
    left = [names[id(w.process)] for w in workers if w.header.pid in pids and not w.ended]
    if left:
        told = f"{_named(left)} lived on after the command"
        yield f"{told}: what came then may not be in this trace"


def _silent(trace: Trace) -> Iterator[str]:
    """Commands of a launch that left no trace: their sizes name no file, and each that is there
    is another's."""
    named = {name for meta in trace.commands for name in meta.sizes}
    if any(process.path.name not in named for process in trace.processes):
        return
    silent = sum(not meta.sizes for meta in trace.commands)
    if silent and trace.processes:
        yield f"{silent} of {plural(len(trace.commands), 'command')} of this run left no trace"


def _vanished(workers: Sequence[Worker], names: Names) -> Iterator[str]:
    """Workers end together: where one wrote its end and another did not, that one was lost."""
    whole = [w for w in workers if w.ended]
    lost = [w for w in _grown_up(workers) if not w.ended and not w.process.cut]
    if whole and lost:
        named = _named([names[id(w.process)] for w in lost])
        yield f"{named} wrote no end, where {plural(len(whole), 'other worker')} did"


def _replaced(workers: Sequence[Worker], names: Names) -> Iterator[str]:
    """A worker that was started anew in its place: what ended the one before it?"""
    for worker in _grown_up(workers):
        if _has_last_word(worker) or worker.process.cut:
            continue
        others = _in_its_place(worker, workers)
        if any(_before(worker, other) for other in others):
            name = names[id(worker.process)]
            yield f"{name} wrote no end before another process took its place"


def _in_its_place(worker: Worker, workers: Sequence[Worker]) -> list[Worker]:
    alike = [w for w in _grown_up(workers) if w.ranks == worker.ranks]
    return [w for w in alike if w is not worker]


def one_after_another(workers: Sequence[Worker]) -> list[str]:
    """A note on places that had several workers in turn: the engines of one command."""
    return [] if _at_once(workers) else _several(workers)


def _side_by_side(workers: Sequence[Worker]) -> list[str]:
    """Workers that were in one place at once: whether each of their launches is whole is not
    told apart."""
    return _several(workers) if _at_once(workers) else []


def _apart(workers: Sequence[Worker], names: Names) -> Iterator[str]:
    """Workers of an engine that no worker of some other of its ranks ran beside: of their
    launch that rank left nothing. Asked of one host, where both clocks say so."""
    engines: dict[tuple[int | None, str], list[list[Worker]]] = {}
    for alike in _by_place(workers):
        for host in {w.header.host for w in alike}:
            there = [w for w in alike if w.header.host == host]
            engines.setdefault((there[0].ranks.dp, host), []).append(there)
    for first, *rest in engines.values():
        for place in rest:
            lone = next(chain(_lone(first, place), _lone(place, first)), None)
            if lone is not None:
                one, other = (names[id(worker.process)] for worker in lone)
                yield f"{one} and {other} ran at different times: a launch lacks a rank"
                break


def _lone(
    workers: Sequence[Worker], others: Sequence[Worker]
) -> Iterator[tuple[Worker, Worker]]:
    """Each of the workers beside which none of the others ran, with one of these."""
    for worker in workers:
        if all(_never_met(worker, other) for other in others):
            yield worker, others[0]


def _never_met(worker: Worker, other: Worker) -> bool:
    """Whether one ended before the other started, by every clock that they have in common."""
    return any(
        min(_lags(one, two, two.header.ns)) > 0
        for one, two in ((worker, other), (other, worker))
    )


def _several(workers: Sequence[Worker]) -> list[str]:
    several = sum(len(alike) > 1 for alike in _by_place(workers))
    if not several:
        return []
    return [
        f"{plural(several, 'rank')} left more than one trace: a worker that was started again, "
        "or two launches of one run id"
    ]


def _by_place(workers: Sequence[Worker]) -> list[list[Worker]]:
    """The workers by their place in the parallel groups; a forked child has its parent's."""
    found: dict[tuple[int | None, ...], list[Worker]] = {}
    for worker in _grown_up(workers):
        r = worker.ranks
        found.setdefault((r.dp, r.pp, r.tp, r.dcp, r.rank), []).append(worker)
    return list(found.values())


def _at_once(workers: Sequence[Worker]) -> bool:
    """Whether some of one place are not known to have come one after another, on one host."""
    return any(
        one.header.host != other.header.host or not (_before(one, other) or _before(other, one))
        for alike in _by_place(workers)
        for one, other in combinations(alike, 2)
    )


def _before(worker: Worker, other: Worker) -> bool:
    """Whether the last record of `worker` came before `other` started, by any clock."""
    return max(_lags(worker, other, other.header.ns)) > 0


def _stopped_early(workers: Sequence[Worker], names: Names) -> Iterator[str]:
    """Workers whose files stop in an earlier phase than their peers', or behind them.

    Only of one engine (a data-parallel rank) and without a refusal, which tells its own end.
    """
    grown = _grown_up(workers)
    for worker in grown:
        if worker.ended or worker.process.cut or worker.failures:
            continue
        if start_died(worker.process):  # WS401 tells its end
            continue
        peers = [w for w in grown if w.ranks.dp == worker.ranks.dp and w.ranks != worker.ranks]
        name, last = names[id(worker.process)], _last_phase(worker)
        reached = max(map(_last_phase, peers), default=last)
        if last < reached:
            yield f"{name} ends in {ORDER[last]}, where its peers went on to {ORDER[reached]}"
        elif not worker.shut_down and (told := _behind(worker, peers)):
            yield f"{name} ends {told}"


def _last_phase(worker: Worker) -> int:
    """The place in ORDER of its last phase; amid serving where ORDER does not have it."""
    last = worker.phases[-1].phase if worker.phases else "init"
    return ORDER.index(last) if last in ORDER else ORDER.index("serving")


def _behind(worker: Worker, peers: Sequence[Worker]) -> str:
    """How much earlier than its peers' a worker's records stop; empty where they do not."""
    early = max((_lag(worker, peer, peer.process.last_ns) for peer in peers), default=0)
    if early > MUCH_EARLIER:
        return f"{early / 1e9:,.0f} s before its peers"
    step = max(worker.process.totals.furthest, 0)
    for peer in peers:
        reached = peer.process.totals
        if reached.furthest <= step:
            continue
        went_on = _lag(worker, peer, reached.furthest_ns) > UNWRITTEN
        if went_on or _asked_on(peer, worker, step):
            return f"at step {step:,}, where its peers went on to step {reached.furthest:,}"
    return ""


def _asked_on(peer: Worker, worker: Worker, step: int) -> bool:
    """Whether `peer` asked in a step after `step` for what `worker` has in no record.

    Of the ranks of one pipeline stage: these run the same layers, and a request that is new
    is written at once.
    """
    if peer.ranks.pp != worker.ranks.pp:
        return False
    for where, use in peer.sites.items():
        own = worker.sites.get(where)
        known = {request.bytes for request in own.after} if own else set()
        if known and any(_new(seen, step, known) for seen in use.of_epoch):
            return True
    return False


def _new(seen: Seen, step: int, known: set[int]) -> bool:
    return seen.last_step > step and seen.bytes not in known


def _lag(worker: Worker, other: Worker, ns: int) -> int:
    """Nanoseconds from the last record of `worker` to `ns`, a time of `other`. Of two clocks
    the nearer answer: one of them may have been set."""
    return min(_lags(worker, other, ns), key=abs)


def _lags(worker: Worker, other: Worker, ns: int) -> list[int]:
    """`_lag` by each clock that the two have in common: hosts the wall clock, processes of one
    host (as far as its name tells) their monotonic clock as well."""
    last = worker.process.last_ns
    by_wall = ns + other.header.wall_offset - (last + worker.header.wall_offset)
    same = worker.header.host == other.header.host
    return [by_wall, ns - last] if same else [by_wall]
