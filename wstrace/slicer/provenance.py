"""What the slicer says about one request: the contract between formula, recorder and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Leaf:
    """A name of a sliced formula; see `wstrace.trace.records.Leaf` for the three kinds."""

    name: str
    kind: Literal["constant", "driver", "unbound"]
    value: int | None = None
    role: str | None = None
    source: str = ""
    where: str = ""
    why: str = ""


@dataclass(frozen=True)
class Sliced:
    """The result of slicing one call.

    `formula` gives the request's bytes in the expression language over `leaves`; None when
    the slice could not be closed, then `stopped` says where and why. `statements` are the
    source lines that made the numbers, innermost first, as `file:line: text`.

    Where a condition chooses between shapes, `arms` holds one formula for each way it can go
    and `formula` is their maximum: an observed request equals one of the arms. A formula
    together with `stopped` holds for this request but has an unbound leaf: it is not closed.
    """

    formula: str | None = None
    leaves: tuple[Leaf, ...] = ()
    statements: tuple[str, ...] = ()
    stopped: str | None = None
    arms: tuple[str, ...] = ()
