"""A process's file that lies there several times, under any names and in any folders, is one.

Its header says whose it is. The whole copy counts: two ranks must not be made of one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from wstrace.errors import one_line
from wstrace.file_names import named_run
from wstrace.trace.records import Header
from wstrace.units import plural

_PIECE = 1 << 20


class Copy(Protocol):
    """A file of records: `process` is whose, `digest` that of its bytes (empty: unknown),
    `wrong` why it cannot be read."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def process(self) -> str: ...
    @property
    def wrong(self) -> str: ...


C = TypeVar("C", bound=Copy)


class ReadableCopy(msgspec.Struct, frozen=True, dict=True):
    """A file whose header was read; its digest is made where it is asked for."""

    path: str
    header: Header

    @property
    def process(self) -> str:
        return process_named(self.header)

    @property
    def wrong(self) -> str:
        return ""

    @cached_property
    def size(self) -> int:
        """Bytes, as of now."""
        return os.stat(self.path).st_size

    @cached_property
    def digest(self) -> str:
        return digest_of(self.path)


@dataclass(frozen=True)
class Kept(Generic[C]):
    """One file of each process, by path. `words` say what was left out; `doubts` what of it may
    have held more than what was kept."""

    files: list[C]
    words: list[str]
    doubts: list[str]


def process_named(header: Header) -> str:
    """Whose records a file holds; empty where its header does not name a process."""
    if not header.pid:
        return ""
    return f"{header.host} {header.pid} {header.wall_ns} {header.ns}"


def digest_of(path: str) -> str:
    """Thirty-two hex digits over the bytes. Raises OSError."""
    with open(path, "rb") as file:
        made = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    return made.hexdigest()


def each_once(files: Sequence[C]) -> Kept[C]:
    """Of several copies of a process's file the longest that can be read. Raises OSError."""
    of_process: dict[str, list[C]] = {}
    for file in sorted(files, key=lambda file: file.path):
        of_process.setdefault(file.process or file.path, []).append(file)
    kept, twice, differ, doubts = [], 0, 0, []
    for copies in of_process.values():
        best = max(copies, key=_better) if len(copies) > 1 else copies[0]
        kept.append(best)
        others = _others(best, copies)
        twice += len(copies) - 1 - len(others)
        differ += len(others)
        doubts += [word for other in others for word in _conflict(best, other)]
    whole = _without_torn_copies(kept)
    return Kept(whole, _words(twice, differ + len(kept) - len(whole)), doubts)


def _better(file: Copy) -> tuple[bool, int, bool]:
    """The recorder's own name is what run.json and forked children call it."""
    return not file.wrong, file.size, bool(named_run(os.path.basename(file.path)))


def _others(best: C, copies: Sequence[C]) -> list[C]:
    """Copies with other bytes than the best, each of these bytes once."""
    if len(copies) == 1:
        return []
    differ = {file.digest or file.path: file for file in copies}
    differ.pop(best.digest or best.path, None)
    return list(differ.values())


def _conflict(best: Copy, other: Copy) -> list[str]:
    """A shorter copy was made while the file was still written; of others either may have lost
    what the other one has."""
    if best.wrong or other.wrong:
        return []
    with suppress(OSError):  # one that has gone is compared with nothing
        if same_beginning(Path(best.path), Path(other.path)):
            return []
    names = sorted({one_line(os.path.basename(file.path)) for file in (best, other)})
    return [
        f"copies of one process's file differ in what both have ({', '.join(names)}): the "
        "longest was read, and a refusal may be in another"
    ]


def _without_torn_copies(kept: Sequence[C]) -> list[C]:
    """Files without one that cannot be read and has the name of one that can: its copy."""
    names = {os.path.basename(file.path) for file in kept if not file.wrong}
    whole = [f for f in kept if not f.wrong or os.path.basename(f.path) not in names]
    return sorted(whole, key=lambda file: file.path)


def _words(twice: int, differ: int) -> list[str]:
    words = []
    if twice:
        words.append(f"{plural(twice, 'file')} of this run lay there twice: counted once")
    if differ:
        of = "a file that differs" if differ == 1 else f"{differ} files that differ"
        words.append(f"{of} from a copy of the same process: the longest was read")
    return words


def same_beginning(one: Path, other: Path) -> bool:
    """Whether two files are equal as far as the shorter one goes. Raises OSError."""
    with one.open("rb") as first, other.open("rb") as second:
        while (piece := first.read(_PIECE)) and (beside := second.read(_PIECE)):
            least = min(len(piece), len(beside))
            if piece[:least] != beside[:least]:
                return False
    return True
