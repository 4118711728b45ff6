"""Where a request's bytes come from: shapes, and a formula sliced from the caller's source."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import frames
from wstrace.trace.records import Leaf, Provenance, Spec

if TYPE_CHECKING:
    from wstrace.slicer.live.way import Way


def every_way() -> Way:
    """The way of a formula that no caller decides."""
    from wstrace.slicer.live.way import EVERY_WAY

    return EVERY_WAY


def specs_above(caller: FrameType) -> tuple[Any, ...]:
    """The specs of the get_simultaneous frame that `caller` called: search from the top."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not caller:
        specs = frames.raw_specs(frame)
        if specs:
            return specs
        frame = frame.f_back
    return ()


def specs_of(raw: tuple[Any, ...]) -> list[Spec]:
    """The specs as records; none where they are not as known."""
    try:
        return frames.spec_records(raw)
    except (TypeError, ValueError, AttributeError):
        return []


def provenance_of(caller: FrameType, raw: tuple[Any, ...]) -> tuple[Provenance, Way]:
    """Slice the caller's source for the request's formula; says where it stopped.

    The slicer is imported here, on the first novel request, to keep start-up cheap.
    """
    from wstrace.slicer.live.way import EVERY_WAY
    from wstrace.slicer.slicer import slice_request

    if not raw:
        return Provenance(stopped="the request's shapes were not seen"), EVERY_WAY
    request = slice_request(caller, raw)
    found = Provenance(
        formula=request.formula,
        arms=list(request.arms),
        leaves=[
            Leaf(
                name=leaf.name,
                kind=leaf.kind,
                value=leaf.value,
                role=leaf.role,
                source=leaf.source,
                where=leaf.where,
                why=leaf.why,
            )
            for leaf in request.leaves
        ],
        statements=list(request.statements),
        stopped=request.stopped,
        callers=list(request.way.callers),
        types=list(request.way.types),
        others=list(request.others),
    )
    return found, request.way


def sliced(live: Live, caller: FrameType, raw: tuple[Any, ...]) -> tuple[Provenance, Way]:
    """`provenance_of`, or a provenance that says how the slicer failed."""
    try:
        return provenance_of(caller, raw)
    except Exception as error:
        live.output.complain("slicer", error)
        return Provenance(stopped=f"the slicer failed: {type(error).__name__}"), every_way()
