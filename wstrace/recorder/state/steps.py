"""The scheduler state of a step, read from vLLM's SchedulerOutput only when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wstrace.recorder.state.near import NearState
from wstrace.recorder.vllm_state.scheduler_output import (
    described,
    longest_continuation,
    made_up,
    most_computed,
    num_reqs,
    tokens_of,
)
from wstrace.trace.records import Step

StepKind = Literal["real", "dummy", "idle", "warmup"]


@dataclass
class StepTracker:
    """Counts execute_model, dummy and idle steps of this process.

    `output` is held only while the step runs, `paused` until its sample_tokens is over;
    the two wrappers of a step (`recorder/hooks/worker.py`) move it from the one to the other.
    `max_*` are the largest real steps so far: tokens a step, requests a step, tokens already
    computed of one request, and of one whose prefill went on (`max_continued`: a decode step
    continues nothing). `near` looks at real steps where `--warn-at` asks for it.
    """

    index: int = 0
    real: int = 0
    kind: StepKind = "dummy"
    output: Any = None
    paused: Any = None
    running: bool = False
    dummy_tokens: int = 0
    max_tokens: int = 0
    max_reqs: int = 0
    max_computed: int = 0
    max_continued: int = 0
    near: NearState | None = None

    def begin(self, output: Any, in_warmup: bool) -> None:
        """execute_model(output) starts; a step with no tokens counts as idle.

        Every step pays for this, and finds it cold: no objects are made.
        """
        self.index += 1
        self.output, self.running = output, True
        self.kind = "real"  # also where the rest cannot be read
        tokens = tokens_of(output)
        if not tokens:
            self.kind = "idle"
            return
        if in_warmup or made_up(output):
            self.kind = "warmup"
            return
        self.real += 1
        if tokens > self.max_tokens:
            self.max_tokens = tokens
        reqs = num_reqs(output)
        if reqs > self.max_reqs:
            self.max_reqs = reqs
        most = most_computed(output)
        if most > self.max_computed:
            self.max_computed = most
        if tokens > reqs and most > self.max_continued:
            self.max_continued = max(self.max_continued, longest_continuation(output))
        if self.near is not None:
            self.near.step(output, tokens, reqs, most)

    def begin_dummy(self, num_tokens: int, kind: StepKind) -> None:
        """A `_dummy_run` or `execute_dummy_batch` starts."""
        self.index += 1
        self.kind, self.output, self.dummy_tokens = kind, None, num_tokens
        self.paused, self.running = None, True

    def end(self) -> None:
        """The step is over: drop vLLM's objects."""
        self.output = self.paused = None
        self.running = False

    def snapshot(self) -> Step:
        """The current step as a record: sizes only, no ids, no tokens."""
        if self.output is None:
            return Step(index=self.index, kind=self.kind, total_tokens=self.dummy_tokens)
        return described(self.output, Step(index=self.index, kind=self.kind))
