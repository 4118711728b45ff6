"""The third way to a bound: a template that fits, dimension by dimension or in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wstrace.bounds.bound import Bound, Goal, worst_case
from wstrace.bounds.evidence import Refusal, Site, reaches, scheduled_rows, told
from wstrace.bounds.inference import (
    Fit,
    NoFit,
    Observation,
    Space,
    Undecided,
    infer,
)
from wstrace.bounds.limits import joint_limits
from wstrace.bounds.rivals import LEAST_VALUES, of_dimension
from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.trace.records import Request
from wstrace.vllm.arena import aligned
from wstrace.vllm.roles import decode_width

_MOST_SPECS: Final = 16


def by_fit(site: Site) -> Bound | Refusal:
    """The largest worst case among the simplest templates that reproduce every request."""
    requests = _usable(site.requests)
    space = _space(site)
    sizes = len({request.bytes for request in requests})
    if sizes < LEAST_VALUES:
        return Refusal(
            f"fewer than {LEAST_VALUES} different sizes were seen in scheduled steps"
        )
    found = _by_shape(requests, space) or _by_bytes(requests, space)
    if isinstance(found, NoFit):
        return Refusal(found.why)
    failed = next(
        (request for request in site.requests if not _explains(found, request, site)), None
    )
    if failed is not None:
        return Refusal(f"{found.formula} does not give {told(failed)}")
    return _worst(found, site, len(requests))


def _explains(found: Fit, request: Request, site: Site) -> bool:
    """Requests outside scheduled steps must fit too, for some values within the limits."""
    formula = expression.parse(found.formula)
    ends = {name: site.roles[name].maximum or 0 for name in formula.names & site.roles.keys()}
    return reaches(formula, request, ends)


def _usable(requests: Sequence[Request]) -> list[Request]:
    """Requests whose step is known in full: the others cannot say what they depend on."""
    return [
        request
        for request in requests
        if request.step and request.step.requests and scheduled_rows(request)
    ]


def _space(site: Site) -> Space:
    """The quantities with limits; without drafts a decode's rows are its tokens: once."""
    twice = {"num_decode_rows"} if decode_width(site.numbers) == "1" else set()
    ranges = {
        role: (limit.minimum, max(limit.minimum, limit.maximum))
        for role, limit in site.roles.items()
        if limit.maximum is not None and role not in twice
    }
    return Space(ranges, site.numbers, tuple(joint_limits(ranges, site.limits)))


def _by_bytes(requests: Sequence[Request], space: Space) -> Fit | NoFit:
    return infer(
        [Observation(scheduled_rows(request), request.bytes) for request in requests], space
    )


def _by_shape(requests: Sequence[Request], space: Space) -> Fit | NoFit | None:
    """Fit every dimension; None where a shape is unknown or does not fit."""
    itemsizes = _itemsizes(requests)
    if not itemsizes:
        return None
    buffers = []
    for index, itemsize in enumerate(itemsizes):
        shapes = [request.specs[index].shape for request in requests]
        dimensions = [_dimension(d, shapes, requests, space) for d in _axes(shapes)]
        failed = [found for found in dimensions if isinstance(found, NoFit)]
        if failed:
            return next((found for found in failed if isinstance(found, Undecided)), None)
        factors = " * ".join([*(f"({d})" for d in dimensions), str(itemsize)])
        buffers.append(f"round256({factors})")
    return _checked(" + ".join(buffers), requests, space)


def _axes(shapes: Sequence[Sequence[int]]) -> range:
    return range(len(shapes[0]))


def _itemsizes(requests: Sequence[Request]) -> list[int]:
    """Bytes of an element of each buffer; empty unless all requests are of one kind."""
    first = requests[0].specs
    kinds = {tuple((len(s.shape), s.dtype) for s in request.specs) for request in requests}
    if len(kinds) != 1 or not 0 < len(first) <= _MOST_SPECS:
        return []
    sizes = [_itemsize(index, requests) for index in range(len(first))]
    return sizes if all(sizes) else []


def _itemsize(index: int, requests: Sequence[Request]) -> int:
    """The only element size for which the buffers add up: 1, 2, 4, 8; 0 if none does."""
    spec = max((request.specs[index] for request in requests), key=lambda s: s.bytes)
    elements = 1
    for dimension in spec.shape:
        elements *= dimension
    fits = [
        size for size in (1, 2, 4, 8, 16) if aligned(elements * size) == aligned(spec.bytes)
    ]
    return fits[0] if len(fits) == 1 else 0


def _dimension(
    axis: int, shapes: Sequence[Sequence[int]], requests: Sequence[Request], space: Space
) -> str | NoFit:
    """The largest formula of one quantity that gives the dimension; else of several."""
    data = [
        Observation(scheduled_rows(request), shape[axis])
        for request, shape in zip(requests, shapes, strict=True)
    ]
    found = of_dimension(data, space, first=axis == 0) or infer(data, space, bytes_=False)
    return found.formula if isinstance(found, Fit) else found


def _checked(text: str, requests: Sequence[Request], space: Space) -> Fit | None:
    formula = expression.parse(text)
    for request in requests:
        rows = ({**space.numbers, **row} for row in scheduled_rows(request))
        if all(formula.evaluate(row) != request.bytes for row in rows):
            return None
    try:
        value, at = space.maximum(text)
    except WstraceError:
        return None
    return Fit(str(formula), value, at)


def _worst(found: Fit, site: Site, count: int) -> Bound | Refusal:
    names = expression.parse(found.formula).names
    limits = {name: site.roles[name] for name in sorted(names)}
    joint = tuple(joint_limits(limits, site.limits))
    why = f"reproduces all {count} requests of scheduled steps"
    if found.others:
        why += f"; so does {found.others[0]}, which needs no more"
    try:
        goal = Goal(found.formula, limits, joint=joint)
        return worst_case(goal, site.numbers, "fitted", why)
    except WstraceError as error:
        return Refusal(f"{found.formula} has no worst case: {error.message}")
