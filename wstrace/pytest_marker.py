"""`@pytest.mark.wstrace(...)`: what a test allows, as a small dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from wstrace.errors import WstraceError
from wstrace.units import parse_bytes

if TYPE_CHECKING:
    from wstrace.gate.judge import Policy


@dataclass(frozen=True)
class Marker:
    """What a marked test allows.

    `max_arena`: bytes of any arena on any rank. `fail_on`, `allow_unlocked`, `min_exercise`:
    as the options of `wstrace gate`. `on_growth`, `reserve`: as those of `wstrace run`.
    """

    max_arena: int | None = None
    fail_on: str = "escapes"
    allow_unlocked: bool = False
    min_exercise: str | None = None
    on_growth: Literal["raise", "grow"] = "raise"
    reserve: str | None = None

    def policy(self) -> Policy:
        """The gate's policy. Raises WstraceError for an unknown code or measure."""
        from wstrace.gate.judge import Policy
        from wstrace.gate.limits import Limits
        from wstrace.gate.selection import parse_selection
        from wstrace.runs.exercised import parse_minimum

        return Policy(
            selection=parse_selection(self.fail_on),
            limits=Limits(arena={} if self.max_arena is None else {"*": self.max_arena}),
            minimum=parse_minimum(self.min_exercise) if self.min_exercise else {},
        )


def read_marker(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Marker:
    """A marker's arguments, checked. Raises WstraceError for what it does not take."""
    known = [field.name for field in fields(Marker)]
    unknown = [str(a) for a in args] + [name for name in kwargs if name not in known]
    if unknown:
        raise WstraceError(
            f"@pytest.mark.wstrace does not take {', '.join(unknown)}.",
            f"It takes {', '.join(known)}, by name.",
        )
    values = dict(kwargs)
    if values.get("max_arena") is not None:
        values["max_arena"] = parse_bytes(str(values["max_arena"]))
    if values.get("on_growth", "raise") not in ("raise", "grow"):
        raise WstraceError(
            f"@pytest.mark.wstrace: on_growth is {values['on_growth']!r}.",
            'Use "raise" or "grow".',
        )
    if values.get("reserve") is not None:
        values["reserve"] = str(values["reserve"])
    marker = Marker(**values)
    marker.policy()
    return marker
