"""What a gathered folder holds and where it came from: `gathered.json` of each run.

In SQLite while a call works, so that memory does not follow the number of files. Each copy is
also a line of a journal at once: a call that was killed loses none of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from wstrace.errors import WstraceError, one_line
from wstrace.file_names import SUFFIX, name_of_its_own, named_run, part_of_name
from wstrace.files import naming, write_whole
from wstrace.fleet.found_files import kind_of, process_of, shown
from wstrace.gather.places import FarFile
from wstrace.plain_files import read_plain

MANIFEST: Final = "gathered.json"
VERSION: Final = 1
LOGS, UNREAD = "logs", "unread"
JOURNAL: Final = ".gathering.jsonl"
PART: Final = ".part."
_LARGEST: Final = 256 << 20
_LONGEST: Final = 200
"""Bytes of a name; a digest comes before it, and 255 are the most."""
_TABLES: Final = """
create table copies (
    source text, folder text, name text, size integer, mark text, digest text, kept integer,
    primary key (folder, name, source, kept));
create index sources on copies (source);
create table processes (folder text, process text, name text, primary key (folder, process));
create table folders (folder text primary key, run text, changed integer);
create table listed (place integer, path blob, size integer, mark text, node text, source text);
create index listed_sources on listed (source);
"""


class Copied(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a manifest: its name there, where it came from, and what it was then.

    `kept`: these bytes are there; another copy of that name may have been better.
    """

    name: str
    source: str
    size: int
    mark: str
    digest: str
    kept: bool = True


class Manifest(msgspec.Struct, omit_defaults=True):
    """`gathered.json`, version 1: `files` by where they came from.

    A place that gave several (other hosts' files lay there, or a file was cut) has a number
    behind it for the others.
    """

    version: int = VERSION
    run: str = ""
    files: dict[str, Copied] = {}


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a file that was brought, or the name `now` of what `was` there."""

    folder: str
    run: str
    copied: Copied | None = None
    was: str = ""
    now: str = ""


@contextmanager
def alone(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    """One call at a time works in a folder; `wait` is called where another one does.

    A file system without locks has none.
    """
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(lock)


@lru_cache(maxsize=256)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


class Copies:
    """The manifests of a folder, by run; what they know of each source.

    `passed_over`: files of the places that are copies here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passed_over = 0
        self._real = os.path.realpath(folder)
        for part in folder.glob(f"{PART}*"):  # of a call that was killed
            shutil.rmtree(part, ignore_errors=True)
        self._db = sqlite3.connect("")  # a file of its own that goes by itself
        self._db.executescript(_TABLES)
        for file in sorted(folder.glob(f"*/{MANIFEST}")):
            known = read_manifest(file)
            self._db.execute(
                "insert into folders values (?,?,0)", (file.parent.name, known.run)
            )
            for copied in known.files.values():
                self._add(file.parent.name, copied)
        self._known_processes: set[str] = set()
        self._resume()
        self._journal = (folder / JOURNAL).open("ab")
        os.chmod(folder / JOURNAL, 0o600)

    def _resume(self) -> None:
        """What the journal of a killed call says; its last line may be cut."""
        with suppress(FileNotFoundError), (self.folder / JOURNAL).open("rb") as journal:
            for line in journal:
                try:
                    entry = msgspec.json.decode(line, type=_Entry)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue
                self._of(entry.folder, entry.run)
                if entry.copied is not None:
                    self._put(entry.folder, entry.copied)
                else:
                    self._rename(entry.folder, entry.was, entry.now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the manifests that changed; what ended the call does not matter. Where one
        cannot be written the journal stays, and what ended the call is told."""
        try:
            self._write()
            (self.folder / JOURNAL).unlink(missing_ok=True)
        except WstraceError:
            if error is None:
                raise
        finally:
            with suppress(OSError):  # what waits was told when it was written
                self._journal.close()
            self._db.close()

    def listed(self, files: Iterator[FarFile], place: int = 0) -> int:
        """Take the list of a place, without the copies here; returns how many files."""
        others = (file for file in files if not self._is_copy(file))
        rows = ((place, os.fsencode(f.path), f.size, f.mark, f.node, f.source) for f in others)
        return self._db.executemany("insert into listed values (?,?,?,?,?,?)", rows).rowcount

    def has_run(self, run: str) -> bool:
        """Whether a file of the lists, by its name, or a folder here is of that very run."""
        if self._db.execute("select 1 from folders where run = ?", (run,)).fetchone():
            return True
        paths = self._db.execute("select path from listed")
        names = (shown(os.path.basename(os.fsdecode(path))) for (path,) in paths)
        return any(part_of_name(named_run(name)) == part_of_name(run) for name in names)

    def _is_copy(self, file: FarFile) -> bool:
        """Whether a file lies in this folder because it was brought here."""
        folder, _, name = file.path.rpartition("/")
        if not os.path.isabs(folder):
            return False
        above, _, own = _real(folder).rpartition("/")
        if above != self._real:
            return False
        query = "select source from copies where folder = ? and name = ?"
        known = {source for (source,) in self._db.execute(query, (own, shown(name)))}
        copy = bool(known) and file.source not in known
        self.passed_over += copy
        return copy

    def forget_unlisted(self) -> None:
        """Drop the copies of what the list does not have, and files that nobody copied."""
        gone = "from copies where source not in (select source from listed)"
        self._db.execute(
            f"update folders set changed = 1 where folder in (select folder {gone})"
        )
        self._db.execute(f"delete {gone}")
        for (folder,) in self._db.execute("select folder from folders").fetchall():
            query = "select name from copies where folder = ? and kept"
            names = {name for (name,) in self._db.execute(query, (folder,))}
            for file in (self.folder / folder).iterdir():
                if file.name not in names and kind_of(file.name) is not None:
                    file.unlink()

    def to_look_at(self, place: int = 0) -> Iterator[FarFile]:
        """The list of a place, in the order of nodes and names."""
        query = "select path, size, mark, node from listed where place = ? order by node, path"
        for path, size, mark, node in self._db.execute(query, (place,)):
            yield FarFile(os.fsdecode(path), size, mark, node)

    def run_of(self, source: str, file: FarFile) -> str | None:
        """The run of a source that was copied as it is now, and whose copy is still there; None
        where it was not."""
        query = (
            "select folder, name, kept, run from copies join folders using (folder)"
            " where source = ? and size = ? and mark = ?"
        )
        values = (source, file.size, file.mark)
        for folder, name, kept, run in self._db.execute(query, values):
            there = self.folder / folder / name
            if there.is_file() and (not kept or there.stat().st_size == file.size):
                return str(run)
        return None

    def place(self, run: str, shared: str = "") -> Path:
        """The folder of a run, made; `shared`: `LOGS` or `UNREAD`, of files of no run."""
        folder = self.folder / (shared or folder_name(run))
        folder.mkdir(mode=0o700, exist_ok=True)
        self._of(folder.name, "" if shared else run)
        return folder

    def of_process(self, folder: Path, process: str) -> str:
        """The name of the file there that holds this process's records; empty for none."""
        if folder.name not in self._known_processes:
            self._known_processes.add(folder.name)
            for file in sorted(folder.glob(f"*{SUFFIX}")):
                if found := process_of(file):
                    self.keeps(folder, found, file.name)
        query = "select name from processes where folder = ? and process = ?"
        found_name = self._db.execute(query, (folder.name, process)).fetchone()
        return str(found_name[0]) if found_name else ""

    def ends(self, folder: Path, column: Literal["source", "digest"], value: str) -> list[str]:
        """The names of the run.json files there that came from a source or have a digest."""
        query = f"select name from copies where folder = ? and kept and {column} = ?"
        names = (str(name) for (name,) in self._db.execute(query, (folder.name, value)))
        return sorted({name for name in names if kind_of(name) == "end"})

    def keeps(self, folder: Path, process: str, name: str) -> None:
        """A process's records have that name now, unless they have one."""
        row = (folder.name, process, name)
        self._db.execute("insert or ignore into processes values (?,?,?)", row)

    def rename(self, folder: Path, was: str, now: str) -> None:
        """Give a file there another name. After a kill in between it is brought once more."""
        self._note(_Entry(folder.name, self._run(folder), was=was, now=now))
        os.replace(folder / was, folder / now)
        self._rename(folder.name, was, now)

    def add(self, folder: Path, copied: Copied) -> None:
        """A file that was brought: in the journal before this returns."""
        self._note(_Entry(folder.name, self._run(folder), copied))
        self._put(folder.name, copied)

    def _run(self, folder: Path) -> str:
        query = "select run from folders where folder = ?"
        return str(self._db.execute(query, (folder.name,)).fetchone()[0])

    def _note(self, entry: _Entry) -> None:
        with naming(self.folder / JOURNAL):
            self._journal.write(msgspec.json.encode(entry) + b"\n")
            self._journal.flush()

    def counts(self) -> dict[str, int]:
        """Files there by run, or by folder where they are of none."""
        query = """select case run when '' then folder else run end, count(distinct name)
            from folders join copies using (folder) group by folder order by folder"""
        return dict(self._db.execute(query).fetchall())

    def _of(self, folder: str, run: str) -> None:
        self._db.execute("insert or ignore into folders values (?,?,1)", (folder, run))

    def _put(self, folder: str, copied: Copied) -> None:
        self._db.execute("update folders set changed = 1 where folder = ?", (folder,))
        if copied.kept:  # what had this name and other bytes is gone
            self._db.execute(
                "update or replace copies set kept = 0"
                " where folder = ? and name = ? and kept and digest != ?",
                (folder, copied.name, copied.digest),
            )
        self._add(folder, copied)

    def _rename(self, folder: str, was: str, now: str) -> None:
        self._db.execute("update folders set changed = 1 where folder = ?", (folder,))
        self._db.execute(
            "update or replace copies set kept = 0 where folder = ? and name = ? and kept",
            (folder, now),
        )
        for table in ("copies", "processes"):
            self._db.execute(
                f"update or replace {table} set name = ? where folder = ? and name = ?",
                (now, folder, was),
            )

    def _add(self, folder: str, copied: Copied) -> None:
        c = copied
        row = (c.source, folder, c.name, c.size, c.mark, c.digest, c.kept)
        self._db.execute("insert or replace into copies values (?,?,?,?,?,?,?)", row)

    def _write(self) -> None:
        """Every manifest that changed, whole."""
        changed = "select folder, run from folders where changed"
        for folder, run in self._db.execute(changed).fetchall():
            query = "select name, source, size, mark, digest, kept from copies where folder = ?"
            rows = (_copied(row) for row in self._db.execute(query, (folder,)))
            if not self._has_copies(folder):
                self._leave(self.folder / folder)
                continue
            made = Manifest(run=run, files=_by_source(rows))
            data = msgspec.json.format(msgspec.json.encode(made), indent=1)
            manifest = self.folder / folder / MANIFEST
            with naming(manifest):
                write_whole(data, manifest, 0o600)

    def _has_copies(self, folder: str) -> bool:
        query = "select 1 from copies where folder = ? limit 1"
        return self._db.execute(query, (folder,)).fetchone() is not None

    def _leave(self, folder: Path) -> None:
        """A folder of which nothing is left."""
        (folder / MANIFEST).unlink(missing_ok=True)
        with suppress(OSError):  # somebody else's file is in it
            folder.rmdir()


def _by_source(rows: Iterable[Copied]) -> dict[str, Copied]:
    files: dict[str, Copied] = {}
    times: dict[str, int] = {}
    for copied in rows:
        key = copied.source
        while key in files:
            times[copied.source] = times.get(copied.source, 1) + 1
            key = f"{copied.source} {times[copied.source]}"
        files[key] = copied
    return files


def _copied(row: tuple[Any, ...]) -> Copied:
    name, source, size, mark, digest, kept = row
    return Copied(name, source, size, mark, digest, bool(kept))


def read_manifest(path: Path) -> Manifest:
    """Raises WstraceError where it is none."""
    try:
        found = msgspec.json.decode(read_plain(path, _LARGEST), type=Manifest)
    except (OSError, ValueError, RecursionError) as error:
        raise WstraceError(
            f"{path} cannot be read: {one_line(str(error))}.",
            "Delete it: the files of that run are then copied again.",
        ) from error
    if found.version != VERSION:
        raise WstraceError(
            f"{path} has version {found.version}, this wstrace reads {VERSION}.",
            "Use the wstrace that gathered it, or gather into another folder.",
        )
    return found


def folder_name(run: str) -> str:
    """A run's id as a folder may be called; one that had to be changed gets a digest."""
    if run == part_of_name(run).strip(".") and run not in ("", LOGS, UNREAD):
        return run
    return name_of_its_own(run, "run", 100)


def file_name(name: str) -> str:
    """A file's name as it may stand in any folder: short and printable; one that had to be
    changed gets a digest."""
    plain = "".join(c if c.isprintable() and c not in "/\\" else "-" for c in name)
    if plain == name and len(name.encode()) <= _LONGEST and name.strip("."):
        return name
    if len(plain.encode()) > _LONGEST:
        head, _, tail = plain.partition(".")
        ending = ".".join(tail.split(".")[-2:])  # says what a file is
        plain = f"{part_of_name(head)}.{part_of_name(ending)}"
    digest = hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=4)
    return f"{digest.hexdigest()}-{plain.lstrip('.')}"
