"""Reading trace files that are still being written, from where the last read ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError
from wstrace.file_names import RUN_FILE
from wstrace.plain_files import open_plain
from wstrace.trace.cleaning import cleaned
from wstrace.trace.decoding import record_decoder
from wstrace.trace.reader import trace_files
from wstrace.trace.records import Header, Record
from wstrace.trace.run_file import RunFile, read_run
from wstrace.trace.shared_parts import UNDECODABLE

_decode: Final = record_decoder()
_CHUNK: Final = 4 << 20
_LONGEST: Final = 16 << 20


@dataclass
class FileTail:
    """One growing file. `offset` is where the next read starts; half lines wait in `rest`.

    `unread` counts whole lines that are no record of this version.
    """

    path: Path
    offset: int = 0
    rest: bytes = b""
    unread: int = 0

    def read(self) -> Iterator[Record]:
        """The records that were appended since the last call."""
        with open_plain(self.path) as file:
            file.seek(self.offset)
            while chunk := file.read(_CHUNK):
                self.offset += len(chunk)
                *lines, self.rest = (self.rest + chunk).split(b"\n")
                for line in lines:
                    yield from self._record(line)
                if len(self.rest) > _LONGEST:
                    self.rest = self.rest[:1]  # no record: what follows makes it none either

    def _record(self, line: bytes) -> Iterator[Record]:
        try:
            record: Record = cleaned(_decode(line))
            yield record
        except UNDECODABLE:
            self.unread += 1


@dataclass
class FolderTail:
    """All trace files of a folder, of one run; files that appear later are picked up.

    `run` picks a run by prefix; without it the newest is followed: `meta`, what run.json
    names, also before that run has written anything.
    """

    folder: Path
    run: str | None = None
    tails: dict[Path, FileTail] = field(default_factory=dict)
    runs: dict[Path, Header] = field(default_factory=dict)
    meta: RunFile | None = None

    def read(self) -> Iterator[tuple[Path, Record]]:
        """New records by file, header first."""
        for path in trace_files(self.folder):
            tail = self.tails.setdefault(path, FileTail(path))
            for record in tail.read():
                if isinstance(record, Header):
                    self.runs[path] = record
                yield path, record

    def followed(self) -> str | None:
        """The run that is followed; None before the first header."""
        if self.run is not None:
            named = [h.run for h in self.runs.values() if h.run.startswith(self.run)]
            return named[0] if named else None
        newest = max(self.runs.values(), key=lambda h: h.wall_ns, default=None)
        meta = self.meta
        if meta is not None and (newest is None or meta.started_ns > newest.wall_ns):
            return meta.run
        return newest.run if newest else None


def read_meta(folder: Path) -> RunFile | None:
    """run.json of the folder; None where there is none yet, or none that can be read."""
    try:
        return read_run(folder / RUN_FILE)
    except WstraceError:
        return None
