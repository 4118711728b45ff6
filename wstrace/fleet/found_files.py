"""The files of a fleet: which of a folder tree are records, ends of runs or logs, and whose."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Final, Literal

import msgspec

from wstrace.errors import WstraceError, one_line
from wstrace.file_names import TraceFileKind, is_packed, named_run, trace_file_kind
from wstrace.trace.each_once import digest_of, process_named
from wstrace.trace.process_file import read_header
from wstrace.trace.run_file import read_run
from wstrace.triage.log_run import is_log

FileKind = TraceFileKind | Literal["log"]

# matches: "serve.log.2.gz"
_LOG: Final = re.compile(r".+\.log(?:\.\d{1,9})?(?:\.(?:gz|bz2|xz|zst|zip|tar))?", re.I)


_COMPRESSED: Final[dict[str, Callable[[Path], BufferedIOBase]]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}
_MOST_CONTENT: Final = 1 << 30
DEEP: Final = 64
"""Folders in each other from which one is listed whole before it is gone through."""


class FoundFile(msgspec.Struct, frozen=True):
    """One file as it lay there: `digest` of its bytes, the run that it belongs to.

    `process` is whose records they are, whatever the file is called now; of a compressed log it
    is the digest of what is in it. `wrong` says why it
    cannot be read; then `run` is what its name says, or empty, and `process` its name.
    """

    path: str
    kind: FileKind
    size: int
    mtime_ns: int
    digest: str = ""
    run: str = ""
    process: str = ""
    wrong: str = ""


def kind_of(name: str) -> FileKind | None:
    """What a file in a folder is by its name; None for one that is not looked at."""
    return trace_file_kind(name) or ("log" if _LOG.fullmatch(name) else None)


def named_kind(path: Path) -> FileKind:
    """What a file is that was given by its own name, whatever that is."""
    return kind_of(path.name) or ("log" if is_log(path) else "records")


def walk(root: Path, wrong: list[str]) -> Iterator[tuple[str, FileKind]]:
    """Every file of `root` that may matter, in no order: a folder of a million is not held.

    Symbolic links to folders are not followed, hidden folders not looked at. A folder that
    cannot be listed goes to `wrong`.
    """
    listing = [_listed(str(root), root, wrong)]
    while listing:
        entry = next(listing[-1], None)
        if entry is None:
            listing.pop()
        elif _is_folder(entry, root, wrong):
            if not entry.name.startswith("."):
                below = _listed(entry.path, root, wrong)
                # each listing that is under way holds a file descriptor
                listing.append(below if len(listing) < DEEP else iter(list(below)))
        elif (kind := kind_of(entry.name)) and _matters(entry, kind):
            yield entry.path, kind


def _listed(folder: str, root: Path, wrong: list[str]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError as error:
        wrong.append(_told(folder, root, error))


def _told(path: str, root: Path, error: OSError) -> str:
    """Below what was asked for: who reads the site need not know what lies above."""
    below = Path(root.name, os.path.relpath(path, root))
    return one_line(f"{below}: {error.strerror or error}")


def _is_folder(entry: os.DirEntry[str], root: Path, wrong: list[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError as error:  # not in the listing of this file system, and it does not say it
        if kind_of(entry.name) is None:
            wrong.append(_told(entry.path, root, error))
        return False


def _matters(entry: os.DirEntry[str], kind: FileKind) -> bool:
    """A pipe in the place of a process's records is told; one that is called a log is none,
    and compressed records beside themselves lack nothing."""
    if is_packed(entry.name) and os.path.exists(entry.path.rpartition(".")[0]):
        return False
    try:
        return entry.is_file() or (kind != "log" and not entry.is_dir())
    except OSError:  # a link in a circle, or into a folder that may not be read: told
        return True


def files_of(path: Path, wrong: list[str]) -> Iterator[tuple[str, FileKind]]:
    """The files that a person's path names: those that `walk` finds, or itself.

    WstraceError where there is no such path, or nobody may look at it.
    """
    try:
        folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WstraceError(
            f"No such file or folder: {path}.", "Give folders with traces."
        ) from error
    except OSError as error:
        raise WstraceError(
            f"{path}: {error.strerror or error}.", "Give folders that can be read."
        ) from error
    if folder:
        yield from walk(path, wrong)
    else:
        yield str(path), named_kind(path)


def look(path: str, kind: FileKind) -> FoundFile:
    """The file with its digest and its run."""
    size = mtime = 0
    named = named_run(shown(os.path.basename(path)))
    try:
        found = os.stat(path)
        size, mtime = found.st_size, found.st_mtime_ns
        if not stat.S_ISREG(found.st_mode):
            return FoundFile(path, kind, size, mtime, run=named, wrong="not a plain file")
        digest = digest_of(path)
    except OSError as error:
        why = one_line(error.strerror or str(error))
        return FoundFile(path, kind, size, mtime, run=named, wrong=why)
    run, process, wrong = _run_of(Path(path), kind)
    return FoundFile(path, kind, size, mtime, digest, run, process, wrong)


def _run_of(path: Path, kind: FileKind) -> tuple[str, str, str]:
    """The run's id, the process that wrote it, and what is wrong with the file."""
    if kind == "log":
        return "", _content(path), ""
    try:
        if kind == "records":
            header = read_header(path)
            return header.run, process_named(header), ""
        meta = read_run(path)
        return (meta.run if meta else ""), "", ""
    except WstraceError as error:
        name = shown(path.name)
        return named_run(name), name, one_line(error.message)


def _content(log: Path) -> str:
    """The digest of what a compressed log holds; empty for a plain one, and where that cannot
    be read or is very much."""
    opened = _COMPRESSED.get(log.suffix.lower())
    if opened is None:
        return ""
    made, left = hashlib.blake2b(digest_size=16), _MOST_CONTENT
    try:
        with opened(log) as file:
            while left > 0 and (piece := file.read(1 << 20)):
                made.update(piece)
                left -= len(piece)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return ""
    return made.hexdigest() if left > 0 else ""


def process_of(path: Path) -> str:
    """Whose records a file holds, as `FoundFile.process` says it; empty where it names none."""
    try:
        return process_named(read_header(path))
    except WstraceError:
        return ""


def shown(path: str) -> str:
    """A path as a text may have it: bytes that are no UTF-8 are spelt."""
    return os.fsencode(path).decode(errors="backslashreplace")
