"""Runs whose workers do not fit together: one that stops, two launches, other engines."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tests.unit.findings.build import CLEAN, MOE, ask, process, session, with_exit
from wstrace.findings.analysed_run import AnalysedRun, analyse
from wstrace.trace.records import Counts, End, PhaseChange, Ranks, Record, Step


def one_stops_at(last: int, *peer: Record) -> AnalysedRun:
    """tp1's file stops after its first `last` records, where tp0's goes on."""
    other = process(*CLEAN, *peer, ranks=Ranks(tp=0, rank=0))
    return with_exit(session(other, process(*CLEAN[:last], ranks=Ranks(tp=1, rank=1))), 0)


def one_falls_behind() -> AnalysedRun:
    """tp1's counters stop at step 40; three seconds later tp0 wrote those of step 400."""
    return one_stops_at(len(CLEAN), Counts(ns=3 * 10**9, step=400, steps_real=399))


def one_lacks_a_request() -> AnalysedRun:
    """tp0 asked for more in step 50, and tp1, which runs the same layers, ends before it."""
    return one_stops_at(
        len(CLEAN), ask(MOE, 1 << 19, "serving", 1 << 20, step=Step(index=50, num_reqs=1))
    )


def started_anew() -> AnalysedRun:
    """A worker that was killed, and another in its place that ended in order."""
    first, second = process(*CLEAN), process(*CLEAN, PhaseChange(phase="shutdown"))
    first.header.pid, second.header.pid = 41, 42
    second.header.wall_ns = 9 * 10**9
    return with_exit(session(first, second), 0)


def of_two_models() -> AnalysedRun:
    """Two ranks of one run id that a mistake of its words gave two models."""
    two = (
        process(
            *(*CLEAN, End()),
            limits={"model": model},
            world=Ranks(dp=1, tp=2, pp=1),
            ranks=Ranks(dp=0, tp=tp, pp=0, rank=tp),
        )
        for tp, model in enumerate("ab")
    )
    return with_exit(session(*two), 0)


def launches_in_turn(*lost: int) -> AnalysedRun:
    """`launched_twice`, one launch after the other, without some of its four workers."""
    trace = launched_twice().trace
    first, later = trace.processes[:2], trace.processes[2:]
    for p in later:
        p.header.ns, p.header.wall_ns = 9 * 10**9, 18 * 10**9
    moved = [
        replace(p, records=[msgspec.structs.replace(r, ns=10**10) for r in p.records])
        for p in later
    ]
    trace.processes = [p for n, p in enumerate([*first, *moved]) if n not in lost]
    return analyse(trace)


def launched_twice() -> AnalysedRun:
    """Two ranks of each of two launches, all of which ended in order."""
    ranks = [Ranks(dp=0, tp=number, rank=number) for number in (0, 1, 0, 1)]
    return with_exit(session(*(process(*CLEAN, End(), ranks=r) for r in ranks)), 0)


def stops_long_before() -> AnalysedRun:
    return one_stops_at(len(CLEAN), Counts(ns=31 * 10**9, step=40, steps_real=39))


def two_engines_of_a_dense_model() -> AnalysedRun:
    """Each stands alone, with a DP world of 1; one of them was lost."""
    one = process(*CLEAN, End(), ranks=Ranks(dp=0, rank=0))
    return session(one, process(*CLEAN, ranks=Ranks(dp=1, rank=0)))
