"""What the recorder's hooks add to one step, on a worker that does nothing else.

In a loop of nothing else the hooks cost a few microseconds, because all that they touch stays
in the processor's caches. A serving process does milliseconds of other work between two
steps, so each step here is timed alone, after work that takes the caches away.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any, Final

from wstrace.recorder.hooks.worker import worker_makers
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.vllm.methods import STEPS

OTHER_BYTES: Final = 16 << 20


class _Idle:
    """The worker's two methods of a step, without work."""

    def execute_model(self, scheduler_output: Any) -> None:
        return None

    def sample_tokens(self, grammar_output: Any) -> None:
        return None


def step_cost(
    outputs: Sequence[Any], pairs: int = 300, settings: Settings | None = None
) -> list[float]:
    """Microseconds that the hooks of execute_model and sample_tokens add to a step.

    One value a pair of steps, with and without the hooks, in random order; the pairs go
    through the SchedulerOutputs of `outputs` in turn. Writes no trace. `settings`: those of
    the recorder, which writes nothing.
    """
    live = Live(settings or Settings(directory=None, run="step-cost"))
    live.worker.current = object()
    makers = worker_makers(live)
    wrapped = {name: makers[name](getattr(_Idle, name)) for name in STEPS}
    sides = {True: type("Hooked", (_Idle,), wrapped)(), False: _Idle()}
    other = _OtherWork()
    rng, found = random.Random(0), []
    for number in range(pairs):
        output = outputs[number % len(outputs)]
        took = {}
        for on in rng.sample((True, False), 2):
            other.run()
            took[on] = _step(sides[on], output)
        found.append(took[True] - took[False])
    return found


def _step(worker: Any, output: Any) -> float:
    start = time.perf_counter_ns()
    worker.execute_model(output)
    worker.sample_tokens(None)
    return (time.perf_counter_ns() - start) / 1000


class _OtherWork:
    """Some milliseconds of memory traffic and of Python."""

    def __init__(self) -> None:
        self._memory = bytearray(OTHER_BYTES)
        self._text = json.dumps([{"id": i, "text": "x" * 40} for i in range(500)])

    def run(self) -> None:
        self._memory = bytearray(self._memory)
        json.loads(self._text)


def decode_step(requests: int) -> Any:
    """vLLM's own SchedulerOutput of a decode step."""
    from vllm.v1.core.sched.output import SchedulerOutput

    output: Any = SchedulerOutput.make_empty()
    ids = [f"cmpl-{number:032x}-0" for number in range(requests)]
    output.num_scheduled_tokens = dict.fromkeys(ids, 1)
    output.total_num_scheduled_tokens = requests
    cached = output.scheduled_cached_reqs
    cached.req_ids, cached.num_computed_tokens = ids, [1000 + n for n in range(requests)]
    return output
