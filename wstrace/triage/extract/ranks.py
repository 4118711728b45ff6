"""The ranks that a process label names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_RANK: Final = re.compile(r"(?:^|[_\s])(DP|PP|TP|EP|DCP)(\d+)(?=$|[_\s])")
_ENGINE: Final = re.compile(r"EngineCore_(\d+)$")


@dataclass(frozen=True)
class Ranks:
    """Where a worker stands; None where the text does not say."""

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dcp: int | None = None

    def within(self, other: Ranks) -> bool:
        """True where `other` says at least as much and nothing else."""
        return all(
            mine is None or mine == getattr(other, name) for name, mine in vars(self).items()
        )


NOWHERE: Final = Ranks()


def ranks_of(label: str) -> Ranks:
    """The ranks in a process label such as `Worker_DP11_TP2_EP46`."""
    name = label.partition(" pid=")[0]
    found = {kind.lower(): int(number) for kind, number in _RANK.findall(name)}
    engine = _ENGINE.match(name)
    if engine and int(engine[1]):
        found["dp"] = int(engine[1])
    return Ranks(**found)
