"""The WS4 codes: what of a run its recorder did not see, or did not write down."""

from __future__ import annotations

from itertools import product

from wstrace.findings.ends import start_died
from wstrace.findings.finding import Finding
from wstrace.runs.worker import Worker
from wstrace.trace.records import Hook, Ranks
from wstrace.vllm.methods import STREAMS

# PyTorch 2.13: torch.cuda.CUDAGraph, as the hook table's labels begin.
ON_GRAPHS = "CUDAGraph."
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
