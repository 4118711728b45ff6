"""The one guard: the recorder's own errors are noted in the trace, never raised into vLLM.

Every piece of the recorder that a wrapper calls goes through `guarded`. It and `complain` are
the only functions of the recorder that may not fail; tests/processes/recorder/test_injection.py
makes each of the others fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol


class Complains(Protocol):
    """Notes an error of the recorder's own."""

    def complain(self, what: str, error: Exception) -> None:
        """Never raises."""


class HasOutput(Protocol):
    """The recorder's state, as far as the guard needs it."""

    @property
    def output(self) -> Complains:
        """Where the error is noted."""


def guarded(
    live: HasOutput, what: str, function: Callable[..., Any], *args: Any, default: Any = None
) -> Any:
    """`function(*args)`; an error becomes a note that says in `what`, and gives `default`."""
    try:
        return function(*args)
    except Exception as error:
        with suppress(Exception):
            live.output.complain(what, error)
        return default
