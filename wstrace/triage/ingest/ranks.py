"""The ranks that a process label names."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from wstrace.trace.records import Ranks

# vLLM 0.13.0 to 0.33.0: WorkerProc's process title (v1/executor/multiproc_executor.py)
# matches: 'Worker_DP11_TP2_EP46'
_RANK: Final = re.compile(r"(?:^|[_\s])(DP|PP|TP|EP|DCP)(\d+)(?=$|[_\s])")
# in no vLLM from 0.13.0 to 0.33.0: there it is EngineCore_DP3, which _RANK reads
# matches: 'EngineCore_3'
_ENGINE: Final = re.compile(r"EngineCore_(\d+)$")
NOWHERE: Final = Ranks()


def named(ranks: Ranks) -> dict[str, int]:
    """The groups that the text names a rank of."""
    found: dict[str, int | None] = msgspec.structs.asdict(ranks)
    return {name: rank for name, rank in found.items() if rank is not None}


def within(one: Ranks, other: Ranks) -> bool:
    """True where `other` says at least as much as `one`, and nothing else."""
    return named(one).items() <= named(other).items()


def ranks_of(label: str) -> Ranks:
    """The ranks in a process label such as `Worker_DP11_TP2_EP46`."""
    name = label.partition(" pid=")[0]
    found = {kind.lower(): int(number) for kind, number in _RANK.findall(name)}
    engine = _ENGINE.match(name)
    if engine and int(engine[1]):
        found["dp"] = int(engine[1])
    return Ranks(**found)
