"""The ranks that a process label names, or a launcher's prefix, or a file of one process."""

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
# PyTorch 2.13 (its excepthook), torchrun, and records that name the rank
# matches: 'gpu01 rank3'
_LAUNCHED: Final = re.compile(r"(?:^|\s)(?:rank|default|trainer)[_-]?(\d{1,6})(?=$|\s)")
# a log for each process: how people and launchers call it
# matches: 'node1/rank0.log'
_FILE_RANK: Final = re.compile(r"(?i)(?:^|[/._-])(?:rank|worker)[_.-]?(\d{1,6})(?=$|[/._-])")
# matches: 'node1/rank0.log'
_FILE_NODE: Final = re.compile(r"(?i)(?:^|[/._-])(?:node|host)[_.-]?(\d{1,6})(?=$|[/._-])")
# PyTorch 2.13: torchrun's --log-dir has a folder for each local rank
# matches: 'attempt_0/3/stderr.log'
_TORCHRUN: Final = re.compile(r"attempt_\d+/(\d{1,6})/(?:stdout|stderr)\.log$")
_FOLDERS: Final = 3  # of a path, its end
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


def ranks_of_prefix(outer: str) -> Ranks:
    """The rank in a launcher's prefix, such as `rank3`, or in the file that a prefix names."""
    found = _LAUNCHED.search(outer) if outer else None
    if found:
        return Ranks(rank=int(found[1]))
    files = (ranks_of_file(name) for name in outer.split() if "." in name)
    return next((ranks for ranks in files if ranks != NOWHERE), NOWHERE)


def ranks_of_file(path: str) -> Ranks:
    """The ranks in the name of a log that holds one process, or of the folder around it."""
    # matches: 'node1/rank0.log'
    name = "/".join(re.split(r"[/\\]", path)[-_FOLDERS:])
    label = ranks_of(_stem(name).replace("-", "_"))
    if "worker" in name.lower() and label != NOWHERE:
        return label
    rank = _TORCHRUN.search(name) or _last(_FILE_RANK, name)
    node = _last(_FILE_NODE, name)
    return Ranks(rank=int(rank[1]) if rank else None, node=int(node[1]) if node else None)


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


def _last(pattern: re.Pattern[str], name: str) -> re.Match[str] | None:
    return next(iter([*pattern.finditer(name)][-1:]), None)


def of_one_process(one: Ranks, other: Ranks) -> bool:
    """True where both may name one process: one says no less than the other, or gives the
    number among all where the other gives its place in the groups."""
    if within(one, other) or within(other, one):
        return True
    first, second = named(one), named(other)
    if ("rank" in first) == ("rank" in second):
        return False
    number, places = (first, second) if "rank" in first else (second, first)
    if number.get("node", places.get("node")) != places.get("node", number.get("node")):
        return False
    sizes = {group: place for group, place in places.items() if group in ("dp", "pp", "tp")}
    if len(sizes) == 1:
        return number["rank"] in sizes.values()
    return bool(sizes) and number["rank"] >= max(sizes.values())


def merged(one: Ranks, other: Ranks) -> Ranks:
    """What both say of one process; its number among all only where no group is named."""
    found = named(one) | named(other)
    if any(group in found for group in ("dp", "pp", "tp", "ep")):
        found.pop("rank", None)
    return Ranks(**found)
