"""Whether a trace can be trusted to show a clean run: the WS4 codes, and the reasons.

"Clean" and "the recorder never attached" must never look alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from wstrace.findings.finding import Finding
from wstrace.findings.kv_sizing import nothing_asked, why_unlocked
from wstrace.findings.rests_on import before_a_worker, start_died
from wstrace.runs.worker import Worker, real_steps
from wstrace.trace.reader import Trace
from wstrace.trace.records import Growth, Hook, Lock, PhaseChange, Ranks, Record, Request
from wstrace.units import plural
from wstrace.versions import release_of
from wstrace.vllm.command_line import option
from wstrace.vllm.methods import STREAMS

# PyTorch 2.13: torch.cuda.CUDAGraph, as the hook table's labels begin.
ON_GRAPHS = "CUDAGraph."
UNASKED = "no request was served after warm-up"
ON_STREAMS = frozenset(known.label for known in STREAMS)


def find(worker: Worker) -> list[Finding]:
    """The WS4 codes of one worker; of WS402 the hooks."""
    return [*_before_lock(worker), *_stood_down(worker), *_truncated(worker)]


def _before_lock(worker: Worker) -> list[Finding]:
    died = "" if worker.failures else start_died(worker.process)
    if worker.served or (worker.locks and not died):
        return []
    last = worker.phases[-1].phase if worker.phases else "init"
    return [
        Finding(
            code="WS401",
            severity="inconclusive",
            detail=died or f"the trace of this worker ends in phase {last}, before the lock",
            advice=(
                "Mend what stopped the start, then record again."
                if died
                else "Let the server start and answer a request, then look again."
            ),
            ranks=(worker.ranks,),
        )
    ]


def _stood_down(worker: Worker) -> list[Finding]:
    lost = [h for h in worker.hooks.values() if not h.set and _counts(worker, h.name)]
    return [
        Finding(
            code="WS402",
            severity="inconclusive",
            detail=lost_hook(hook),
            advice="Run `wstrace doctor` in this environment, and report the vLLM version.",
            ranks=(worker.ranks,),
        )
        for hook in lost
    ]


def lost_hook(hook: Hook) -> str:
    """What reports and the gate say of a hook that stood down."""
    return f"the hook {hook.name} stood down: {hook.why}"


def _counts(worker: Worker, name: str) -> bool:
    """Every hook counts, but those that tell streams apart (WS304 then says that order was not
    seen), and those on CUDA graphs where the config has none."""
    if name in ON_STREAMS:
        return False
    if name.startswith(ON_GRAPHS):
        return worker.limits.get("cudagraph_mode") not in (None, "NONE")
    return True


def _truncated(worker: Worker) -> list[Finding]:
    return [
        Finding(
            code="WS403",
            severity="note",
            detail=f"more than {t.limit:,} {t.what}: later ones are kept as maxima a site only",
            advice="Nothing is wrong: maxima and counts are complete.",
            ranks=(worker.ranks,),
        )
        for t in worker.truncated
    ]


def find_missing(ranks: list[Worker]) -> list[Finding]:
    """WS402: ranks that the config promises and that left no trace."""
    missing = missing_ranks(ranks)
    if not missing:
        return []
    return [
        Finding(
            code="WS402",
            severity="inconclusive",
            detail=f"{len(missing)} of {len(missing) + len(ranks)} ranks left no trace",
            advice="Install wstrace on every node, and give the gate all trace folders.",
            ranks=tuple(missing),
        )
    ]


def missing_ranks(ranks: list[Worker]) -> list[Ranks]:
    """Expected (dp, pp, tp) places without a worker record, from the group sizes."""
    if not ranks:
        return []
    world = ranks[0].init.world
    places = product(range(world.dp or 1), range(world.pp or 1), range(world.tp or 1))
    seen = {(v.ranks.dp or 0, v.ranks.pp or 0, v.ranks.tp or 0) for v in ranks}
    return [Ranks(dp=dp, pp=pp, tp=tp) for dp, pp, tp in places if (dp, pp, tp) not in seen]


def version_notes(ranks: list[Worker]) -> list[str]:
    """What the workers' vLLM versions mean for the report; empty for one that was checked."""
    seen = sorted({v.header.vllm or "?" for v in ranks})
    found = []
    if len(seen) > 1:
        found.append(f"the workers ran different vLLM versions: {', '.join(seen)}")
    taken = (release_of(version.strip("?")).taken_for for version in seen)
    return [*found, *(f"{told}; read bounds and findings with care" for told in taken if told)]


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
        return list(dict.fromkeys(filter(None, (before_a_worker(trace), why, *doubts))))
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
    found += lost_engines(ranks, trace)
    found += _out_of_memory(ranks)
    found += [
        f"a reserve was refused: {event.why}"
        for worker in ranks
        for event in worker.reserves
        if event.event == "refused"
    ]
    found += doubts
    found += [f"{p.unknown} records of an unknown kind" for p in trace.processes if p.unknown]
    return list(dict.fromkeys(found))


def _idle(worker: Worker) -> bool:
    """True where it was ready, by a lock or by its phase, and no real step is seen after."""
    if not (worker.served or worker.locks):
        return False
    steps = worker.counts.steps_real if worker.counts else 0
    asked = any(count.phase == "serving" for count in worker.newest.values())
    return not (steps or asked or worker.failures or real_steps(worker))


def lost_engines(ranks: list[Worker], trace: Trace) -> list[str]:
    """Engines that the command promises: of a dense model no worker knows of the others.

    With --data-parallel-rank a command starts one of them (vLLM 0.13.0 to 0.33.0).
    """
    command = trace.meta.command if trace.meta else []
    told = option(command, "--data-parallel-size", "-dp") or ""
    alone = option(command, "--data-parallel-rank", "-dpn") is not None
    size = int(told) if told.isdecimal() and len(told) < 6 else 1
    seen = {worker.ranks.dp or 0 for worker in ranks}
    if alone or len(seen) >= size or any((w.world.dp or 1) >= size for w in ranks):
        return []  # a world that the workers know is WS402's
    return [f"{size - len(seen)} of {size} data-parallel engines left no trace"]


def _let_go(ranks: list[Worker], allow_unlocked: bool) -> list[str]:
    """An unlock that no lock followed, and serving went on: growth was silent from there."""
    if allow_unlocked or not any(map(served_unlocked, ranks)):
        return []
    return [
        "the arena was unlocked and not locked again before it served on "
        "(--allow-unlocked accepts that)"
    ]


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
