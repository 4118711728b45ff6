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
from wstrace.trace.each_once import each_once


class RowSource(msgspec.Struct, frozen=True, dict=True):
    """The files of one run (`log` False) or one log, and what was noticed when choosing them.

    `ends` are the run.json of its commands, under any names. `doubts`: what was not chosen may
    have held more. `digest` is over what was chosen and said: equal digests give equal rows.
    `whole`: every file could be read when it was looked at.
    """

    run: str
    files: tuple[str, ...]
    ends: tuple[str, ...] = ()
    log: bool = False
    bytes: int = 0
    digest: str = ""
    words: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    whole: bool = True

    @cached_property
    def by_folder(self) -> dict[str, list[str]]:
        """The files of every folder that holds something of it, in the order of names."""
        found: dict[str, list[str]] = {folder: [] for folder in self.ends_by_folder}
        for file in self.files:
            found.setdefault(os.path.dirname(file), []).append(file)
        return dict(sorted(found.items()))

    @cached_property
    def ends_by_folder(self) -> dict[str, list[str]]:
        """`ends` by the folder that holds them."""
        found: dict[str, list[str]] = {}
        for end in self.ends:
            found.setdefault(os.path.dirname(end), []).append(end)
        return found

    @property
    def places(self) -> list[str]:
        """Its folders as a text may name them."""
        return [shown(folder) for folder in self.by_folder]


def source_of(run: str, found: Sequence[FoundFile]) -> RowSource:
    """The source of some files of one run, each process's file once."""
    records = [file for file in found if file.kind == "records"]
    ends = [file for file in found if file.kind == "end"]
    once = each_once(records)
    kept, told = once.files, [*once.words, *once.doubts]
    return RowSource(
        run=run,
        files=tuple(file.path for file in kept),
        ends=tuple(sorted(file.path for file in ends)),
        bytes=sum(file.size for file in kept),
        digest=_digest([*told, run, *(f.digest or f.path for f in [*kept, *ends])]),
        words=tuple(once.words),
        doubts=tuple(once.doubts),
        whole=all(file.digest for file in (*kept, *ends)),
    )


def log_source(file: FoundFile, copies: int = 1) -> RowSource:
    """The source of one log, of which `copies` lay there under any names."""
    name = shown(os.path.basename(file.path))
    words = []
    if copies > 1:
        words.append(f"{copies:,} files hold this log: counted once")
    digest = _digest([name, file.digest, *words])
    return RowSource(name, (file.path,), (), True, file.size, digest, tuple(words))


def _digest(parts: Iterable[str]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for part in sorted(parts):
        made.update(part.encode(errors="surrogateescape") + b"\0")
    return made.hexdigest()
