"""The same piece of work with the hooks on and off in turn, thousands of times, in one engine.

A host changes its speed within seconds, some by half: whole batches scatter by a tenth and
more, and a rhythm of the host can fall in with the order of the sides. So a piece is some
milliseconds long, and which side of a pair comes first is drawn. As a control the same is
done with the hooks off on both sides.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from tools.bench.toggle import detached
from wstrace.recorder.state.process import Live

Pair = dict[str, list[float]]
KINDS = (("pair", (True, False)), ("control", (False, False)))
PIECES = 4


def alternate(
    piece: Callable[[], float], live: Live, calls: Callable[[], int]
) -> Iterator[Pair]:
    """Pairs without end, PIECES pieces each; `piece` returns its seconds.

    `pair` is [on, off], `control` [off, off]; `calls` are the manager calls that the recorder
    counted in the pair: [on, off].
    """
    rng = random.Random(0)
    while True:
        found: Pair = {}
        for kind, recorded in KINDS:
            took, counted = [0.0, 0.0], [0, 0]
            for side in rng.sample((0, 1), 2):
                before = calls()
                took[side] = _side(piece, live, recorded[side])
                counted[side] = calls() - before
            found[kind] = took
            if kind == "pair":
                found["calls"] = [float(count) for count in counted]
        yield found


def _side(piece: Callable[[], float], live: Live, recorded: bool) -> float:
    """Seconds of a piece. Every method is taken off and put back before either kind."""
    with detached(live):
        pass
    if recorded:
        return piece()
    with detached(live):
        return piece()


def timed(work: Callable[[], Any], *, warm: int, count: int) -> float:
    """Seconds of `count` calls after `warm` ones: Python specialises changed methods anew."""
    for _ in range(warm):
        work()
    started = time.perf_counter()
    for _ in range(count):
        work()
    return time.perf_counter() - started
