"""vLLM's SchedulerOutput: the one place that knows its fields' names.

0.11 to 0.33: total_num_scheduled_tokens, num_scheduled_tokens (by request id),
scheduled_new_reqs, scheduled_cached_reqs, scheduled_spec_decode_tokens. The first functions
run at every step and read what every release has; the later ones, for what is written down,
take a field that is missing for empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from wstrace.trace.records import ScheduledRequest, Step

MAX_REQUESTS: Final = 64
# vLLM 0.18.1 to 0.33.0 (_v2_mixed_warmup: not in 0.23.0, in 0.24.0): v1/worker/gpu/warmup.py.
WARMUP_PREFIXES: Final = ("_warmup_", "_v2_mixed_warmup")
"""How the ids of V2's made-up warm-up requests begin."""


def tokens_of(output: Any) -> int:
    """Tokens of the step, all requests; 0 in an idle step."""
    return output.total_num_scheduled_tokens  # type: ignore[no-any-return]


def num_reqs(output: Any) -> int:
    """Requests with a token in the step."""
    return len(output.num_scheduled_tokens)


def made_up(output: Any) -> bool:
    """V2's warm-up requests, known by their ids; others have random ones."""
    scheduled = output.num_scheduled_tokens
    for req_id in scheduled:
        if not req_id.startswith(WARMUP_PREFIXES):
            return False
    return bool(scheduled)


def most_computed(output: Any) -> int:
    """Most tokens of one request that were computed before this step; no objects are made."""
    computed = output.scheduled_cached_reqs.num_computed_tokens
    most = max(computed) if computed else 0
    for new in output.scheduled_new_reqs:
        if new.num_computed_tokens > most:
            most = new.num_computed_tokens
    return most


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


def described(output: Any, step: Step) -> Step:
    """`step` with the sizes of its requests, the first 64 of them; no ids, no tokens."""
    requests = list(requests_of(output))
    step.total_tokens = int(getattr(output, "total_num_scheduled_tokens", 0))
    step.num_reqs = len(getattr(output, "num_scheduled_tokens", ()))
    step.draft_tokens = sum(r.draft for r in requests)
    step.requests = requests[:MAX_REQUESTS]
    return step
