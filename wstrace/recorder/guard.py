"""The recorder's own errors: noted in the trace, never raised into vLLM."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wstrace.recorder.state.process import Live


def guarded(live: Live, what: str, function: Callable[..., Any], *args: Any) -> None:
    """Run a piece of the recorder; an error becomes a note that says in `what`."""
    try:
        function(*args)
    except Exception as error:
        live.complain(what, error)
