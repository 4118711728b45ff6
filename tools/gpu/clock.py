"""The deadline of a run: every wait ends before it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


class OutOfTimeError(Exception):
    """The deadline came before this could be done."""


@dataclass
class Clock:
    """Seconds since the start, and how many are left before `deadline` less `margin`.

    `margin` seconds are kept for checks, reports and packing.
    """

    deadline: float
    margin: float = 45.0
    started: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def left(self) -> float:
        """Seconds left for servers; negative past the deadline."""
        return self.deadline - self.margin - self.now()

    def within(self, seconds: float, what: str) -> float:
        """`seconds`, or less if the deadline is nearer. Raises OutOfTimeError past it."""
        left = self.left()
        if left <= 0:
            raise OutOfTimeError(f"{what}: the deadline of {self.deadline:.0f} s came first")
        return min(seconds, left)
