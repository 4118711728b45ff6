"""The files, rows and cache of a fleet in one SQLite file: memory stays small, and a scan that
was cut goes on where it was."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from wstrace.errors import WstraceError
from wstrace.fleet.found_files import FileKind, FoundFile, look, shown
from wstrace.fleet.source import RowSource, log_source, source_of
from wstrace.fleet.summary import RunSummary, decode, encode

NAME: Final = "fleet.sqlite"
_BATCH: Final = 500
"""Changes after which the file is written: what a killed call loses is read again."""
_FORMAT: Final = 3
"""Goes up when a table changes; a cache of another one is made anew."""
_TABLES: Final = """
create table if not exists files (
    path blob primary key, kind text, size integer, mtime_ns integer,
    digest text, run text, process text, wrong text, scan integer);
create index if not exists runs on files (scan, run, path);
create table if not exists summaries (key text primary key, summary blob);
create temp table rows (
    number integer primary key, run text, kind text, model text, vllm text, verdict text,
    started text, page text, summary blob);
create index temp.by_run on rows (run);
create index temp.newest on rows (model, verdict != 'findings', started desc);
create temp table waiting (number integer primary key, source blob);
create temp table logs (content primary key, copies integer) without rowid;
"""


_COUNT_LOGS: Final = """
insert into logs select coalesce(nullif(process, ''), nullif(digest, ''), path), 1
from files where scan = ? and kind = 'log'
on conflict do update set copies = copies + 1;
"""


class Store:
    """A fleet's memory on disk. `path` None: a file without a name, which is gone when the
    process is, however it ends."""

    def __init__(self, path: Path | None) -> None:
        self._kept = 0
        try:
            self._db = self._opened(path)
        except (sqlite3.Error, OSError) as error:
            if path is None:
                raise WstraceError(
                    f"Cannot make a temporary file: {error}.",
                    "Set TMPDIR to a folder with free space.",
                ) from error
            raise WstraceError(
                f"Cannot use the cache {path}: {error}.",
                "Delete it, name another folder with --cache, or add --no-cache.",
            ) from error

    def _opened(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite's own temporary file: it removes the name as soon as the file is open
        db = sqlite3.connect(path or "", timeout=60)
        if path is not None:
            os.chmod(path, 0o600)
        db.execute("pragma temp_store = file")
        db.execute("pragma synchronous = off")  # what is lost is read again
        db.execute("pragma cache_size = -32768")  # KiB: paths come in the order of no index
        if db.execute("pragma user_version").fetchone() != (_FORMAT,):
            db.executescript("drop table if exists files; drop table if exists summaries;")
            db.execute(f"pragma user_version = {_FORMAT}")
        db.executescript(_TABLES)
        self._scan = db.execute("select coalesce(max(scan), 0) + 1 from files").fetchone()[0]
        return db

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.commit()
        self._db.close()

    def take(self, found: Iterable[tuple[str, FileKind]]) -> Iterator[FoundFile]:
        """Each file looked at; one whose size and time are known is not read again."""
        for number, (path, kind) in enumerate(found, 1):
            file = self._known(path, kind) or look(path, kind)
            values = (os.fsencode(path), *msgspec.structs.astuple(file)[1:], self._scan)
            self._db.execute("insert or replace into files values (?,?,?,?,?,?,?,?,?)", values)
            if number % _BATCH == 0:
                self._db.commit()
            yield file
        self._db.commit()

    def _known(self, path: str, kind: FileKind) -> FoundFile | None:
        row = self._db.execute(
            f"select {_COLUMNS} from files where path = ?", (os.fsencode(path),)
        ).fetchone()
        if row is None:
            return None
        known = _file(row)
        try:
            now = os.stat(path)
        except OSError:
            return None
        same = (known.kind, known.size, known.mtime_ns) == (kind, now.st_size, now.st_mtime_ns)
        return known if same and known.digest else None

    def sources(self) -> Iterator[RowSource]:
        """The runs of this scan by id, then its logs."""
        query = (
            f"select {_COLUMNS} from files where scan = ? and kind %s 'log' order by run, path"
        )
        rows = self._db.execute(query % "!=", (self._scan,))
        for run, files in groupby(map(_file, rows), key=lambda file: file.run):
            if run:
                yield source_of(run, list(files))
            else:  # a file of no run: a row of its own
                for file in files:
                    yield source_of(shown(os.path.basename(file.path)), [file])
        self._db.execute("delete from logs")
        self._db.execute(_COUNT_LOGS, (self._scan,))
        for row in self._db.execute(query % "=", (self._scan,)):
            file = _file(row)
            content = (file.process or file.digest or os.fsencode(file.path),)
            taken = self._db.execute(
                "delete from logs where content = ? returning copies", content
            ).fetchone()
            if taken:
                yield log_source(file, taken[0])

    def wait(self, source: RowSource) -> None:
        """Put a source aside until it is read."""
        text = json.dumps(msgspec.to_builtins(source))  # a path may be no UTF-8
        self._db.execute("insert into waiting (source) values (?)", (text,))

    def waiting(self) -> Iterator[RowSource]:
        """What was put aside, in order."""
        for (text,) in self._db.execute("select source from waiting order by number"):
            yield msgspec.convert(json.loads(text), RowSource)

    def cached(self, key: str) -> RunSummary | None:
        """The summary made before from the same bytes by the same code."""
        query = "select summary from summaries where key = ?"
        found = self._db.execute(query, (key,)).fetchone()
        return decode(found[0]) if found else None

    def keep(self, key: str, summary: RunSummary) -> None:
        """Put a summary into the cache."""
        self._db.execute(
            "insert or replace into summaries values (?,?)", (key, encode(summary))
        )
        self._kept += 1
        if self._kept % _BATCH == 0:
            self._db.commit()

    def add(self, summary: RunSummary) -> None:
        """One row of this fleet."""
        s = summary
        row = (s.run, s.kind, s.model, s.vllm, s.verdict, s.started, s.page, encode(s))
        self._db.execute(
            "insert into rows (run, kind, model, vllm, verdict, started, page, summary)"
            " values (?,?,?,?,?,?,?,?)",
            row,
        )

    def summaries(self) -> Iterator[RunSummary]:
        """Every row, by run."""
        for (blob,) in self._db.execute("select summary from rows order by run, number"):
            yield decode(blob)

    def of_model(self, model: str, most: int) -> list[RunSummary]:
        """The newest rows of a model, those with findings first."""
        rows = self._db.execute(
            "select summary from rows where model = ? order by verdict != 'findings', "
            "started desc, number limit ?",
            (model, most),
        )
        return [decode(blob) for (blob,) in rows]


_COLUMNS: Final = ", ".join(FoundFile.__struct_fields__)


def _file(row: tuple[Any, ...]) -> FoundFile:
    return FoundFile(os.fsdecode(row[0]), *row[1:])
