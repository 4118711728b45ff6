"""What one row of a fleet is made from: the files of one run, or one log.

A run id ties the files of a launch, wherever they lie; two runs of one folder never mix. A file
that was gathered twice counts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from wstrace.fleet.found_files import FoundFile
from wstrace.units import plural


class RowSource(msgspec.Struct, frozen=True):
    """The files of one run (`log` False) or one log, and what was noticed when choosing them.

    `ends` are the folders whose run.json is this run's. `digest` is over what was chosen:
    equal digests give equal rows.
    """

    run: str
    files: tuple[str, ...]
    ends: tuple[str, ...] = ()
    log: bool = False
    bytes: int = 0
    digest: str = ""
    words: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """Every folder that holds something of it, in the order of names."""
        return tuple(sorted({str(Path(file).parent) for file in self.files} | set(self.ends)))


def source_of(run: str, found: Sequence[FoundFile]) -> RowSource:
    """The source of some files of one run, each process's file once."""
    records = [file for file in found if file.kind == "records"]
    ends = [file for file in found if file.kind == "end"]
    kept, words = _each_once(records)
    return RowSource(
        run=run,
        files=tuple(file.path for file in kept),
        ends=tuple(sorted({str(Path(file.path).parent) for file in ends})),
        bytes=sum(file.size for file in kept),
        digest=_digest([run, *(f.digest or f.path for f in [*kept, *ends])]),
        words=tuple(words),
    )


def log_source(file: FoundFile) -> RowSource:
    """The source of one log."""
    name = Path(file.path).name
    return RowSource(name, (file.path,), (), True, file.size, _digest([name, file.digest]))


def _digest(parts: Iterable[str]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for part in sorted(parts):
        made.update(part.encode(errors="surrogateescape") + b"\0")
    return made.hexdigest()


def _each_once(records: Sequence[FoundFile]) -> tuple[list[FoundFile], list[str]]:
    """A process's file has a name of its own: of several copies the longest is read."""
    by_bytes: dict[str, FoundFile] = {}
    for file in records:
        by_bytes.setdefault(file.digest or file.path, file)
    by_name: dict[str, list[FoundFile]] = {}
    for file in by_bytes.values():
        by_name.setdefault(Path(file.path).name, []).append(file)
    kept = [max(copies, key=lambda f: (not f.wrong, f.size)) for copies in by_name.values()]
    words = []
    if twice := len(records) - len(by_bytes):
        words.append(f"{plural(twice, 'file')} of this run lay there twice: counted once")
    if differ := len(by_bytes) - len(kept):
        of = "a file that differs" if differ == 1 else f"{differ} files that differ"
        words.append(f"{of} from a copy of the same name: the longest was read")
    return sorted(kept, key=lambda file: file.path), words
