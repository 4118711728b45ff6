"""The scheduler state of a step, read from vLLM's SchedulerOutput only when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from wstrace.trace.records import ScheduledRequest, Step

StepKind = Literal["real", "dummy", "idle", "warmup"]
WARMUP_PREFIXES = ("_warmup_", "_v2_mixed_warmup")
MAX_REQUESTS = 64


@dataclass
class StepTracker:
    """Counts execute_model, dummy and idle steps of this process.

    `output` is held only while the step runs, `paused` until its sample_tokens is over;
    the two wrappers of a step (`recorder/worker.py`) move it from the one to the other.
    `max_*` are the largest real steps so far: tokens a step, requests a step, tokens already
    computed of one request, and of one whose prefill went on (`max_continued`: a decode step
    continues nothing).
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

    def begin(self, output: Any, in_warmup: bool) -> None:
        """execute_model(output) starts; a step with no tokens counts as idle.

        Every step pays for this, and finds it cold: one function, no objects made.
        """
        self.index += 1
        self.output, self.running = output, True
        self.kind = "real"  # also where the rest cannot be read
        tokens = output.total_num_scheduled_tokens
        if not tokens:
            self.kind = "idle"
            return
        scheduled = output.num_scheduled_tokens
        if in_warmup or _made_up(scheduled):
            self.kind = "warmup"
            return
        self.real += 1
        if tokens > self.max_tokens:
            self.max_tokens = tokens
        reqs = len(scheduled)
        if reqs > self.max_reqs:
            self.max_reqs = reqs
        cached = output.scheduled_cached_reqs
        computed = cached.num_computed_tokens
        most = max(computed) if computed else 0
        for new in output.scheduled_new_reqs:
            if new.num_computed_tokens > most:
                most = new.num_computed_tokens
        if most > self.max_computed:
            self.max_computed = most
        if tokens > reqs and most > self.max_continued:
            self.max_continued = max(self.max_continued, longest_continuation(output))

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
        requests = list(requests_of(self.output))
        scheduled = getattr(self.output, "num_scheduled_tokens", {})
        return Step(
            index=self.index,
            kind=self.kind,
            total_tokens=int(getattr(self.output, "total_num_scheduled_tokens", 0)),
            num_reqs=len(scheduled),
            draft_tokens=sum(r.draft for r in requests),
            requests=requests[:MAX_REQUESTS],
        )


def _made_up(scheduled: dict[str, int]) -> bool:
    """V2's warm-up requests, known by their ids; others have random ones."""
    for req_id in scheduled:
        if not req_id.startswith(WARMUP_PREFIXES):
            return False
    return bool(scheduled)


def longest_continuation(output: Any) -> int:
    """Most computed tokens of a request that prefills more in this step; 0 in a decode step."""
    return max(
        (r.computed for r in requests_of(output) if r.scheduled > 1 + r.draft), default=0
    )


def requests_of(output: Any) -> Iterator[ScheduledRequest]:
    """Per request: tokens scheduled now, tokens computed before, drafts among them."""
    scheduled = getattr(output, "num_scheduled_tokens", {})
    drafts = getattr(output, "scheduled_spec_decode_tokens", None) or {}
    for new in getattr(output, "scheduled_new_reqs", ()):
        yield ScheduledRequest(
            scheduled=int(scheduled.get(new.req_id, 0)),
            computed=int(new.num_computed_tokens),
            new=True,
            draft=len(drafts.get(new.req_id, ())),
        )
    cached = getattr(output, "scheduled_cached_reqs", None)
    ids = getattr(cached, "req_ids", ())
    for req_id, computed in zip(ids, getattr(cached, "num_computed_tokens", ()), strict=False):
        yield ScheduledRequest(
            scheduled=int(scheduled.get(req_id, 0)),
            computed=int(computed),
            draft=len(drafts.get(req_id, ())),
        )
