"""What the recorder's hooks add to one step, on a worker that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from wstrace.recorder.live import Live
from wstrace.recorder.settings import Settings
from wstrace.recorder.worker import worker_makers

WARM_STEPS = 50


class _Idle:
    """The worker's two methods of a step, without work."""

    def execute_model(self, scheduler_output: Any) -> None:
        return None

    def sample_tokens(self, grammar_output: Any) -> None:
        return None


def step_cost(outputs: Sequence[Any], pairs: int = 40) -> list[float]:
    """Microseconds that the hooks of execute_model and sample_tokens add to a step.

    One value a pair of alternating blocks, with and without the hooks, each of one step for
    every SchedulerOutput of `outputs`; CPU time of this thread. Writes no trace.
    """
    live = Live(Settings(directory=None, run="step-cost"))
    live.worker = object()
    makers = worker_makers(live)
    hooked = type(
        "Hooked", (_Idle,), {name: makers[name](getattr(_Idle, name)) for name in STEP_METHODS}
    )
    sides = {True: hooked(), False: _Idle()}
    for worker in sides.values():
        _block(worker, list(outputs) * (WARM_STEPS // len(outputs) + 1))
    found = []
    for number in range(pairs):
        took = {on: _block(sides[on], outputs) for on in _order(number)}
        found.append(took[True] - took[False])
    return found


STEP_METHODS = ("execute_model", "sample_tokens")


def _order(number: int) -> tuple[bool, bool]:
    return (True, False) if number % 2 else (False, True)


def _block(worker: Any, outputs: Sequence[Any]) -> float:
    start = time.thread_time_ns()
    for output in outputs:
        worker.execute_model(output)
        worker.sample_tokens(None)
    return (time.thread_time_ns() - start) / len(outputs) / 1000
