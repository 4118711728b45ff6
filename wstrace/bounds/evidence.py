"""What is known about one site before a bound is made: its requests and the config."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from wstrace.bounds.limits import RoleLimit, role_limits
from wstrace.bounds.quantities import Row, rows
from wstrace.reserve.evaluate import numeric
from wstrace.trace.records import Ask, Limit


@dataclass(frozen=True)
class Refusal:
    """Why a way of bounding was not taken; an empty `why` needs no mention.

    `known_site` and `lever` are those of a rule that names the site but did not hold.
    """

    why: str
    needs: tuple[str, ...] = ()
    known_site: str | None = None
    lever: dict[str, str] | None = None


@dataclass(frozen=True)
class Site:
    """One call site, all its requests (any slot, rank and phase), and the config's limits."""

    file: str
    function: str
    asks: tuple[Ask, ...]
    limits: dict[str, Limit]
    vllm_version: str | None = None

    @cached_property
    def observed(self) -> int:
        """The largest request seen, in bytes; 0 without any."""
        return max((ask.bytes for ask in self.asks), default=0)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The limits that formulas can use."""
        return numeric(self.limits)

    @cached_property
    def roles(self) -> dict[str, RoleLimit]:
        """The range of every scheduler quantity."""
        return role_limits(self.limits)


def scheduled_rows(ask: Ask) -> tuple[Row, ...]:
    """The scheduler's values for `ask` where they are the truth: a real step's."""
    return rows(ask.step) if ask.step is not None and ask.step.kind == "real" else ()


def told(ask: Ask) -> str:
    """One request, as a sentence names it: '10,420,224 bytes in serving, step 12'."""
    step = f", step {ask.step.index}" if ask.step is not None else ""
    return f"{ask.bytes:,} bytes in {ask.phase}{step}"
