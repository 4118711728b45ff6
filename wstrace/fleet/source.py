"""What one row of a fleet is made from: the files of one run, or one log.

A run id ties the files of a launch, wherever they lie; two runs of one folder never mix. A file
that was gathered twice counts once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec

from wstrace.fleet.found_files import FoundFile, shown
from wstrace.units import plural


class RowSource(msgspec.Struct, frozen=True, dict=True):
    """The files of one run (`log` False) or one log, and what was noticed when choosing them.

    `ends` are the folders whose run.json is this run's. `digest` is over what was chosen:
    equal digests give equal rows. `whole`: every file could be read when it was looked at.
    """

    run: str
    files: tuple[str, ...]
    ends: tuple[str, ...] = ()
    log: bool = False
    bytes: int = 0
    digest: str = ""
    words: tuple[str, ...] = ()
    whole: bool = True

    @cached_property
    def by_folder(self) -> dict[str, list[str]]:
        """The files of every folder that holds something of it, in the order of names."""
        found: dict[str, list[str]] = {end: [] for end in self.ends}
        for file in self.files:
            found.setdefault(os.path.dirname(file), []).append(file)
        return dict(sorted(found.items()))

    @property
    def places(self) -> list[str]:
        """Its folders as a text may name them."""
        return [shown(folder) for folder in self.by_folder]


def source_of(run: str, found: Sequence[FoundFile]) -> RowSource:
    """The source of some files of one run, each process's file once."""
    records = [file for file in found if file.kind == "records"]
    ends = [file for file in found if file.kind == "end"]
    kept, words = _each_once(records)
    return RowSource(
        run=run,
        files=tuple(file.path for file in kept),
        ends=tuple(sorted({os.path.dirname(file.path) for file in ends})),
        bytes=sum(file.size for file in kept),
        digest=_digest([run, *(f.digest or f.path for f in [*kept, *ends])]),
        words=tuple(words),
        whole=all(file.digest for file in (*kept, *ends)),
    )


def log_source(file: FoundFile) -> RowSource:
    """The source of one log."""
    name = shown(os.path.basename(file.path))
    return RowSource(name, (file.path,), (), True, file.size, _digest([name, file.digest]))


def _digest(parts: Iterable[str]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for part in sorted(parts):
        made.update(part.encode(errors="surrogateescape") + b"\0")
    return made.hexdigest()


def _each_once(records: Sequence[FoundFile]) -> tuple[list[FoundFile], list[str]]:
    """Of several copies of a process's file the longest is read."""
    by_bytes: dict[str, FoundFile] = {}
    for file in records:
        # what holds no record is equal for many processes
        own = os.path.basename(file.path) if file.wrong else ""
        by_bytes.setdefault(f"{file.digest or file.path}/{own}", file)
    of_process: dict[str, list[FoundFile]] = {}
    for file in by_bytes.values():
        of_process.setdefault(file.process or shown(file.path), []).append(file)
    kept = [max(copies, key=lambda f: (not f.wrong, f.size)) for copies in of_process.values()]
    kept = _without_torn_copies(kept)
    words = []
    if twice := len(records) - len(by_bytes):
        words.append(f"{plural(twice, 'file')} of this run lay there twice: counted once")
    if differ := len(by_bytes) - len(kept):
        of = "a file that differs" if differ == 1 else f"{differ} files that differ"
        words.append(f"{of} from a copy of the same process: the longest was read")
    return sorted(kept, key=lambda file: file.path), words


def _without_torn_copies(kept: Sequence[FoundFile]) -> list[FoundFile]:
    """Files without one that cannot be read and has the name of one that can: its copy."""
    names = {os.path.basename(file.path) for file in kept if not file.wrong}
    return [f for f in kept if not f.wrong or os.path.basename(f.path) not in names]
