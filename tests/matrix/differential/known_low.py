"""Proved bounds that are known to be too low, with the reason; an empty table is the aim.

A row names what the engines of its states have in common. The long run fails for a row that no
state needs any more, so that a mended rule takes its row with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.matrix.differential.harness import Low


@dataclass(frozen=True)
class Known:
    """One reason why a proved bound is too low."""

    reason: str
    covers: Callable[[Low], bool]


KNOWN: tuple[Known, ...] = ()


def reason_of(low: Low) -> Known | None:
    """The first row that covers this state."""
    return next((known for known in KNOWN if known.covers(low)), None)
