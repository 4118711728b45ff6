"""Fitted bounds under traffic as servers see it: few sizes, prefills and decodes mixed.

A hidden formula makes the shapes of a site that nobody can read. What a trace of a short
session gives must never lie below what the same site asks later, anywhere inside the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import pytest

from wstrace.bounds.bound import Bound
from wstrace.bounds.by_fit import by_fit
from wstrace.bounds.evidence import Site
from wstrace.trace.records import Request, ScheduledRequest, Slot, Spec, Step

Shapes = list[tuple[tuple[int, ...], int]]


@dataclass(frozen=True)
class Server:
    """Its limits, and the numbers of the layer that nobody wrote down."""

    length: int
    budget: int
    seqs: int
    block: int
    heads: int
    size: int
    top_k: int

    @property
    def limits(self) -> dict[str, int]:
        """What the recorder reads of the config."""
        return {
            "max_model_len": self.length, "max_num_batched_tokens": self.budget,
            "max_num_seqs": self.seqs, "block_size": self.block,
        }  # fmt: skip


@dataclass(frozen=True)
class Totals:
    """What a layer sees of a step."""

    tokens: int
    reqs: int
    cached: int
    longest: int
    decode_tokens: int
    prefill_tokens: int
    total: int


def _totals(step: Sequence[ScheduledRequest]) -> Totals:
    decodes = [r for r in step if r.computed and r.scheduled == 1]
    tokens = sum(r.scheduled for r in step)
    return Totals(
        tokens=tokens, reqs=len(step), cached=max(r.computed for r in step),
        longest=max(r.computed + r.scheduled for r in step), decode_tokens=len(decodes),
        prefill_tokens=tokens - len(decodes), total=sum(r.computed + r.scheduled for r in step),
    )  # fmt: skip


Hidden = Callable[[Server, Totals], Shapes]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


KINDS: dict[str, Hidden] = {
    "tokens by heads": lambda s, t: [((t.tokens, s.heads, s.size), 2)],
    "tokens, flattened": lambda s, t: [((t.tokens * s.heads * s.size,), 2)],
    "experts": lambda s, t: [((t.tokens * s.top_k, 1408), 2), ((t.tokens * s.top_k, 2048), 2)],
    "experts, three axes": lambda s, t: [((t.tokens, s.top_k, 2816), 2)],
    "requests by splits": lambda s, t: [((t.reqs, s.heads, 32, s.size + 1), 4)],
    "cached prefix": lambda s, t: [((1, s.heads, _up(t.cached, s.block), s.size), 2)] * 2,
    "decodes": lambda s, t: [((t.decode_tokens, s.heads, s.size), 2)],
    "prefills": lambda s, t: [((t.prefill_tokens, s.heads * s.size), 2)],
    "all sequences": lambda s, t: [((t.total, s.size), 1), ((t.total, 4), 1)],
    "tiles of tokens": lambda s, t: [((_up(t.tokens, 128), s.size), 2)],
    "splits of the longest": lambda s, t: [((t.reqs, -(-t.longest // 512), s.size), 4)],
    "requests by longest": lambda s, t: [((t.reqs, _up(t.longest, 64)), 4)],
    "a floor": lambda s, t: [((max(t.tokens, 512), s.size), 2)],
    "offsets": lambda s, t: [((t.reqs + 1,), 4), ((t.tokens, s.heads), 4)],
    "two rows a request": lambda s, t: [((t.tokens + 2 * t.reqs, s.size), 2)],
    "larger of two": lambda s, t: [((max(t.tokens, 8 * t.reqs), s.size), 2)],
}


def _server(random: Random) -> Server:
    return Server(
        length=random.choice((4096, 8192, 32768)), budget=random.choice((2048, 4096, 8192)),
        seqs=random.choice((16, 64, 128, 256)), block=random.choice((16, 32)),
        heads=random.choice((4, 8, 16, 32)), size=random.choice((64, 128, 256)),
        top_k=random.choice((2, 6, 8)),
    )  # fmt: skip


def _session(random: Random, server: Server, arrivals: int) -> list[list[ScheduledRequest]]:
    """Prompts arrive one after another and decode together: what a scheduler makes of it."""
    typical = random.choice((100, 500, 2000))
    waiting = [
        min(server.length - 40, 1 + int(random.expovariate(1 / typical)))
        for _ in range(arrivals)
    ]
    running: list[list[int]] = []  # [prompt, computed, left to decode]
    steps: list[list[ScheduledRequest]] = []
    while (waiting or running) and len(steps) < 400:
        while waiting and len(running) < server.seqs and random.random() < 0.4:
            running.append([waiting.pop(), 0, random.randint(4, 30)])
        step, budget = [], server.budget
        for request in running:
            prompt, computed, _ = request
            scheduled = min(max(1, prompt - computed), budget)
            if scheduled:
                step.append(ScheduledRequest(scheduled=scheduled, computed=computed))
                budget -= scheduled
                request[1] += scheduled
                request[2] -= request[1] > prompt
        running = [request for request in running if request[2] > 0]
        if step:
            steps.append(step)
    return steps


def _later(server: Server) -> list[list[ScheduledRequest]]:
    """Steps at the corners of the limits."""
    decode = ScheduledRequest(scheduled=1, computed=server.length - 1)
    decodes = [decode] * min(server.seqs, server.budget)
    tokens = min(server.budget, server.length - 1)
    prefill = [ScheduledRequest(scheduled=tokens, computed=server.length - tokens - 1)]
    fresh: list[ScheduledRequest] = []
    left = server.budget
    while left and len(fresh) < server.seqs:
        fresh.append(ScheduledRequest(scheduled=min(left, server.length - 1), computed=0))
        left -= fresh[-1].scheduled
    half = server.seqs // 2
    rest = min(server.budget - half, server.length - 1)
    mixed = [*decodes[:half], ScheduledRequest(scheduled=rest, computed=0)]
    return [decodes, prefill, fresh, mixed]


def _request(index: int, step: list[ScheduledRequest], shapes: Shapes) -> Request | None:
    specs = []
    for shape, size in shapes:
        total = size
        for dimension in shape:
            total *= dimension
        specs.append(Spec(shape=list(shape), dtype=f"torch.{_DTYPES[size]}", bytes=total))
    asked = sum(_up(spec.bytes, 256) for spec in specs)
    if not asked:
        return None
    shown = Step(
        index=index, total_tokens=sum(r.scheduled for r in step), num_reqs=len(step),
        requests=step[:64],
    )  # fmt: skip
    return Request(
        site=1, slot=Slot(), bytes=asked, arena=asked, phase="serving", locked=True,
        specs=specs, step=shown if len(step) <= 64 else None,
    )  # fmt: skip


_DTYPES = {1: "uint8", 2: "bfloat16", 4: "float32"}


def _trial(random: Random, kind: str) -> tuple[str, float]:
    """What a session's trace says of a hidden formula, and its bound by the later maximum."""
    server, hidden = _server(random), KINDS[kind]
    found: dict[int, Request] = {}
    for index, step in enumerate(_session(random, server, random.randint(3, 25))):
        request = _request(index, step, hidden(server, _totals(step)))
        if request is not None:
            found.setdefault(request.bytes, request)  # the recorder writes a size once
    later = [hidden(server, _totals(step)) for step in _later(server)]
    most = max(
        (request.bytes for i, s in enumerate(later) if (request := _request(i, [], s))),
        default=0,
    )
    bound = by_fit(
        Site("layer.py", "Layer.forward", tuple(found.values()), dict(server.limits))
    )
    if not isinstance(bound, Bound):
        return bound.why, 0.0
    return "fitted", (bound.bytes or 0) / most


def _trials(count: int, seed: int) -> dict[str, list[tuple[str, float]]]:
    random = Random(seed)
    results: dict[str, list[tuple[str, float]]] = {kind: [] for kind in KINDS}
    for index in range(count):
        kind = list(KINDS)[index % len(KINDS)]
        results[kind].append(_trial(random, kind))
    return results


def _check(results: dict[str, list[tuple[str, float]]]) -> None:
    ratios = [ratio for rows in results.values() for told, ratio in rows if told == "fitted"]
    low = {kind: min(r for _, r in rows if r) for kind, rows in results.items() if any(
        0 < r < 1 for _, r in rows)}  # fmt: skip
    assert low == {}
    assert len(ratios) >= 0.5 * sum(map(len, results.values()))
    assert sum(ratio == 1 for ratio in ratios) >= 0.5 * len(ratios)


def test_half_of_the_hidden_formulas_are_fitted_and_none_too_low() -> None:
    _check(_trials(32, 20261128))


def test_a_dimension_that_stood_still_on_one_step_of_a_length_is_no_constant() -> None:
    """Two splits of 512 for the longest of 535 to 922 tokens are sixteen under max_model_len:
    a trial of the long form that was fitted eight times too low."""
    steps = [
        [(0, 919), (0, 45), (0, 193)],
        [(919, 1), (45, 1), (193, 1), (0, 340)],
        [(922, 1), (48, 1), (196, 1), (342, 1), (0, 520)],
        [(212, 1), (535, 1)],
        [(540, 1)],
    ]
    requests = []
    for index, rows in enumerate(steps):
        step = [ScheduledRequest(computed=c, scheduled=s) for c, s in rows]
        request = _request(index, step, [((len(rows), 2, 64), 4)])
        assert request is not None
        requests.append(request)
    limits = {
        "max_model_len": 8192, "max_num_batched_tokens": 4096, "max_num_seqs": 16,
        "block_size": 32,
    }  # fmt: skip
    found = by_fit(Site("layer.py", "Layer.forward", tuple(requests), dict(limits)))
    assert not isinstance(found, Bound) or (found.bytes or 0) >= 16 * 16 * 64 * 4


@pytest.mark.slow
def test_two_thousand_hidden_formulas() -> None:
    _check(_trials(2000, 1))
