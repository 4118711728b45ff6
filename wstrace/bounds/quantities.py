"""The scheduler quantities of a step, by role, as far as its record shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wstrace.trace.records import Request, Step

Row = Mapping[str, int]


def rows(step: Step | None) -> tuple[Row, ...]:
    """The values that roles may have had for a call in `step`; empty where unknown.

    A call serves the whole step or one of its requests, and a trace does not say which.
    The first row takes the largest of every per-request quantity, the others are the
    requests one by one; a step of one request has one row.
    """
    if step is None or step.total_tokens <= 0:
        return ()
    shared = {"num_scheduled_tokens": step.total_tokens, "num_reqs": step.num_reqs}
    if not step.requests:
        return (shared,)
    shared |= _totals(step.requests)
    single = [{**shared, **_of_request(request)} for request in step.requests]
    largest = {name: max(row[name] for row in single) for name in single[0]}
    return (largest, *(row for row in single if row != largest))


def _of_request(request: Request) -> dict[str, int]:
    return {
        "num_computed_tokens": request.computed,
        "query_len": request.scheduled,
        "seq_len": request.computed + request.scheduled,
    }


def _totals(requests: Sequence[Request]) -> dict[str, int]:
    decodes = [request for request in requests if _decodes(request)]
    decode_tokens = sum(request.scheduled for request in decodes)
    return {
        "num_decodes": len(decodes),
        "num_decode_tokens": decode_tokens,
        "num_decode_rows": len(decodes) * max((r.scheduled for r in decodes), default=0),
        "num_prefills": len(requests) - len(decodes),
        "num_prefill_tokens": sum(r.scheduled for r in requests) - decode_tokens,
        "total_seq_len": sum(r.computed + r.scheduled for r in requests),
    }


def _decodes(request: Request) -> bool:
    return request.computed > 0 and request.scheduled <= 1 + request.draft
