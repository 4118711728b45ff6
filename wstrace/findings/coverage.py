"""The WS4 codes: what of a run its recorder did not see, or did not write down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from wstrace.findings.ends import start_died
from wstrace.findings.finding import Finding
from wstrace.runs.worker import Worker
from wstrace.trace.records import Hook, Ranks
from wstrace.vllm.methods import STREAMS

# PyTorch 2.13: torch.cuda.CUDAGraph, as the hook table's labels begin.
ON_GRAPHS = "CUDAGraph."
ON_STREAMS = frozenset(known.label for known in STREAMS)
MOST_MISSING: Final = 10_000
"""Ranks, and nodes, that are looked for: more than any engine has."""


def find(worker: Worker) -> list[Finding]:
    """WS402 (the hooks) and WS403 of one worker."""
    return [*_stood_down(worker), *_truncated(worker)]


def find_starts(workers: Sequence[Worker]) -> list[Finding]:
    """WS401 of all workers: those whose start raised first, since their peers only waited."""
    died = {id(w): "" if w.failures else start_died(w.process) for w in workers}
    causes = any(died.values())
    first = sorted(workers, key=lambda worker: not died[id(worker)])
    return [found for w in first for found in _before_lock(w, died[id(w)], causes)]


def _before_lock(worker: Worker, died: str, mend: bool) -> list[Finding]:
    """`died`: what its start raised; `mend`: whether the start of any worker raised."""
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
                if mend
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
            detail=_how_many(missing, ranks) + _dark(ranks),
            advice="Install wstrace on every node, and give the gate all trace folders.",
            ranks=tuple(missing),
        )
    ]


def _how_many(missing: list[Ranks], ranks: list[Worker]) -> str:
    if len(missing) < MOST_MISSING:
        return f"{len(missing)} of {len(missing) + len(ranks)} ranks left no trace"
    return (
        f"{len(missing):,} ranks or more left no trace (no more are counted: the group sizes "
        "in the trace may be wrong)"
    )


def missing_ranks(ranks: list[Worker]) -> list[Ranks]:
    """Expected (dp, pp, pcp, tp) places without a worker record, from the group sizes; the
    first `MOST_MISSING`, since a trace may say any size."""
    if not ranks:
        return []
    world = ranks[0].init.world
    groups = [world.dp, world.pp, world.pcp, world.tp]
    seen = {tuple(n or 0 for n in (r.dp, r.pp, r.pcp, r.tp)) for r in (v.ranks for v in ranks)}
    lost = islice(
        (p for p in _places([size or 1 for size in groups]) if p not in seen), MOST_MISSING
    )
    alone = (world.pcp or 1) == 1
    return [Ranks(dp=dp, pp=pp, pcp=None if alone else pcp, tp=tp) for dp, pp, pcp, tp in lost]


def _places(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """As itertools.product of their ranges, which would hold each of these."""
    if not sizes:
        yield ()
    if not sizes or min(sizes) < 1:
        return
    for first in range(sizes[0]):
        for rest in _places(sizes[1:]):
            yield first, *rest


def _dark(ranks: list[Worker]) -> str:
    nodes = dark_nodes(ranks)
    more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return f", none of node {', '.join(map(str, nodes[:8]))}{more}" if nodes else ""


def dark_nodes(ranks: list[Worker]) -> list[int]:
    """Nodes of an engine over several, by the numbers that vLLM gives them, of which no rank
    left a trace. Only where every worker knows its node and how many there are."""
    nodes = {v.ranks.node for v in ranks}
    counts = {v.init.world.node for v in ranks}
    if len(counts) != 1 or None in nodes | counts:
        return []
    every = range(min(MOST_MISSING, max(c or 0 for c in counts)))
    return [node for node in every if node not in nodes]
