"""Why a trace cannot show a clean run: "clean" and "the recorder never attached" must never
look alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from wstrace.findings.coverage import lost_hook
from wstrace.findings.ends import before_a_worker
from wstrace.findings.finding import Finding
from wstrace.findings.kv_sizing import nothing_asked, why_unlocked
from wstrace.runs.worker import Worker, real_steps
from wstrace.trace.reader import Trace
from wstrace.trace.records import (
    Failure,
    Growth,
    Hook,
    Lock,
    Manager,
    PhaseChange,
    Record,
    Request,
)
from wstrace.units import plural
from wstrace.vllm.command_line import engines_of

UNASKED: Final = "no request was served after warm-up"
OF_LAUNCH: Final = ("model", "max_model_len", "max_num_batched_tokens", "max_num_seqs")
"""Limits that a launch's words give all its ranks alike."""


def reasons(
    ranks: list[Worker],
    findings: Iterable[Finding],
    trace: Trace,
    doubts: Sequence[str],
    allow_unlocked: bool,
) -> list[str]:
    """Why the trace cannot show a clean run; empty when it can. `doubts` are those of what the
    verdict rests on."""
    if not trace.processes:
        why = "the folder holds no trace: the recorder never attached, or could not write there"
        if trace.among_others:
            why = (
                "no trace file of this run lies beside those of others: the recorder never "
                "attached, or could not write there, or run.json is of another launch"
            )
        if trace.unread:
            why = f"the folder holds {plural(trace.unread, 'trace file')}, and none can be read"
        had = trace.meta is not None and trace.meta.sizes
        told = [*doubts] if had else [before_a_worker(trace), why, *doubts]
        return list(dict.fromkeys(filter(None, told)))
    if not ranks:
        why = "no worker left a trace: the recorder never attached to one"
        told = [before_a_worker(trace) or why, *_lost_anywhere(trace), *doubts]
        return list(dict.fromkeys(told))
    found = [f.detail for f in findings if f.severity == "inconclusive"]
    unlocked = [] if allow_unlocked else [v for v in ranks if v.served and not v.locks]
    if unlocked and all(map(nothing_asked, ranks)):
        steps = max(w.counts.steps_real for w in ranks if w.counts)
        found.append(
            f"no layer asked for workspace in {plural(steps, 'step')}: nothing to reserve"
        )
    elif unlocked:
        why = why_unlocked(unlocked[0])
        found.append(f"no lock was seen: {why} (--allow-unlocked accepts that)")
    # of an engine that still runs (pytest's own) the last second's steps are not written yet
    over = trace.meta is not None or all(worker.ended for worker in ranks)
    if over and all(map(_idle, ranks)):
        found.append(UNASKED)
    found += _let_go(ranks, allow_unlocked)
    found += _several_managers(ranks)
    found += lost_engines(ranks, trace)
    found += different(ranks)
    if any(map(size_unknown, ranks)):
        found.append("how many ranks the engine has is in no record")
    found += _out_of_memory(ranks)
    found += [
        f"a reserve was refused: {event.why}"
        for worker in ranks
        for event in worker.reserves
        if event.event == "refused"
    ]
    found += doubts
    found += [
        f"{plural(p.unknown, 'record')} of an unknown kind"
        for p in trace.processes
        if p.unknown
    ]
    return list(dict.fromkeys(found))


def _idle(worker: Worker) -> bool:
    """True where it was ready, by a lock or by its phase, and no real step is seen after."""
    if not (worker.served or worker.locks):
        return False
    steps = worker.counts.steps_real if worker.counts else 0
    asked = any(count.phase == "serving" for count in worker.newest.values())
    return not (steps or asked or worker.failures or real_steps(worker))


def different(ranks: Sequence[Worker]) -> list[str]:
    """What no launch gives its ranks differently: else files of several launches, or of a host
    with other words, lie under one run id, and each may lack a rank of its own.

    The number of data-parallel engines is not asked: vLLM's elastic EP changes it.
    """
    told: dict[str, set[object]] = {
        "vLLM versions": {v.header.vllm or "?" for v in ranks},
        **{f"values of {name}": {v.init.limits.get(name) for v in ranks} for name in OF_LAUNCH},
        **{
            f"numbers of {name.upper()} ranks": {getattr(v.init.world, name) for v in ranks}
            for name in ("tp", "pp", "pcp")
        },
    }
    return [
        f"the workers have different {what}: {_listed(seen - {None})}"
        for what, seen in told.items()
        if len(seen - {None}) > 1
    ]


def _listed(values: Iterable[object]) -> str:
    shown = sorted(map(str, values))
    return ", ".join(shown[:4]) + (" ..." if len(shown) > 4 else "")


def size_unknown(worker: Worker) -> bool:
    """Whether its config did not tell how many ranks the engine has: one may be missing."""
    world = worker.init.world
    return (world.tp, world.pp, world.dp) == (None, None, None)


def lost_engines(ranks: list[Worker], trace: Trace) -> list[str]:
    """Engines that the commands start: of a dense model no worker knows of the others."""
    promised = engines_of(meta.words for meta in trace.commands)
    seen = {worker.ranks.dp or 0 for worker in ranks}
    known = any((w.world.dp or 1) >= promised.everywhere for w in ranks)
    if len(seen) >= promised.here or known:
        return []  # a world that the workers know is WS402's
    lost = promised.here - len(seen)
    return [f"{lost} of {promised.here} data-parallel engines left no trace"]


def _let_go(ranks: list[Worker], allow_unlocked: bool) -> list[str]:
    """An unlock that no lock followed, and serving went on: growth was silent from there."""
    if allow_unlocked or not any(map(served_unlocked, ranks)):
        return []
    return [
        "the arena was unlocked and not locked again before it served on "
        "(--allow-unlocked accepts that)"
    ]


def _several_managers(ranks: list[Worker]) -> list[str]:
    """A WorkspaceManager that answered after a later one was made: lock and warm-up are
    followed by worker, as vLLM has one manager in each."""
    if not any(map(_answered_by_an_earlier_one, ranks)):
        return []
    return [
        "several WorkspaceManagers answered at one time in a worker: "
        "which of them a lock and a warm-up belong to is not told apart"
    ]


def _answered_by_an_earlier_one(worker: Worker) -> bool:
    newest = 0
    for record in worker.process.records:
        if isinstance(record, Manager):
            newest = max(newest, record.id)
        elif isinstance(record, Request | Growth | Failure | Lock) and record.manager < newest:
            return True
    return False


def served_unlocked(worker: Worker) -> bool:
    """Whether it served after an unlock that no lock followed."""
    unlocked = False
    for record in worker.process.records:
        if isinstance(record, Lock):
            unlocked = record.event == "unlock"
        elif unlocked and _in_serving(record):
            return True
    return False


def _in_serving(record: Record) -> bool:
    return isinstance(record, PhaseChange | Request | Growth) and record.phase == "serving"


def _out_of_memory(ranks: list[Worker]) -> list[str]:
    lost = [f for worker in ranks for f in worker.failures if f.kind == "memory"]
    return [f"vLLM ran out of memory for a request for workspace in {f.phase}" for f in lost]


def _lost_anywhere(trace: Trace) -> list[str]:
    """Hooks that stood down in any process: without the door none of them is a worker."""
    hooks = (r for p in trace.processes for r in p.events if isinstance(r, Hook))
    return list(dict.fromkeys(lost_hook(hook) for hook in hooks if not hook.set))
