"""Where in its life the engine was when something failed: by the stack, or by its own lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstrace.triage.extract import tracebacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstrace.trace.records import Phase
    from wstrace.triage.extract.facts import Frame, Origin, Text


def phase_of(text: Text, origin: Origin, frames: Sequence[Frame]) -> Phase | None:
    """The phase at `origin`: what the frames show comes first, then the last line before it in
    which vLLM says where it is. None where neither tells."""
    shown = tracebacks.phase(frames)
    if shown is not None:
        return shown
    before = [stage for stage in text.stages if stage.origin.at < origin.at]
    return before[-1].phase if before else None
