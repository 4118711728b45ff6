"""Where traces are gathered from: a folder, an address of fsspec, a folder of every Ray node.

A place lists its files and reads one in pieces; nothing is held whole.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from wstrace.errors import WstraceError, one_line
from wstrace.fleet.found_files import files_of, kind_of, shown
from wstrace.gather.ray_cluster import connected, gone, nodes, on_node
from wstrace.plain_files import open_plain
from wstrace.trace.cleaning import clean_text

PIECE: Final = 8 << 20
RAY: Final = "ray:"


class UnansweredError(OSError):
    """A library's own error: its server is gone, or does not like what it is asked."""


@dataclass(frozen=True)
class FarFile:
    """One file of a place. `mark` changes when it does: a time of change, an etag."""

    path: str
    size: int
    mark: str = ""
    node: str = ""

    @property
    def name(self) -> str:
        """Its base name."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def source(self) -> str:
        """Where it came from, as a manifest has it."""
        return shown(f"{self.node[:12]}:{self.path}" if self.node else self.path)


class Place(Protocol):
    """A place as it is used; nothing is asked of it before its files are listed.

    Errors of it are OSError, whatever its library raises (FileNotFoundError: nothing is there);
    WstraceError where nothing of it can be used, and something can be done. `wrong`: what of it
    could not be listed.
    """

    wrong: list[str]

    def files(self) -> Iterator[FarFile]:
        """Every file that belongs to a trace."""
        ...

    def pieces(self, file: FarFile) -> Iterator[bytes]:
        """The bytes of one file, in order."""
        ...


def is_far(source: str) -> bool:
    """Whether a source is no path of this machine."""
    return source.startswith(RAY) or "://" in source


def place_named(source: str) -> Place:
    """The place that a source names: `ray:/path`, `scheme://...`, or a path here."""
    if source.startswith(RAY):
        return RayNodes(source.removeprefix(RAY))
    if "://" in source:
        return Remote(source)
    return Folder(Path(source))


@dataclass
class Folder:
    """A folder or a file of this machine, shared storage included."""

    root: Path
    wrong: list[str] = field(default_factory=list)

    def files(self) -> Iterator[FarFile]:
        """In no order, by their whole paths; WstraceError where there is no such folder."""
        here = os.getcwd()
        for path, _ in files_of(self.root, self.wrong):
            try:
                found = os.stat(path)
            except OSError as error:  # a link to nothing
                self.wrong.append(one_line(f"{path}: {why(error)}"))
                continue
            if stat.S_ISREG(found.st_mode):
                yield FarFile(os.path.join(here, path), found.st_size, str(found.st_mtime_ns))
            else:
                self.wrong.append(one_line(f"{path}: not a plain file"))

    def pieces(self, file: FarFile) -> Iterator[bytes]:
        """Read as it is now: a file that grows meanwhile is read to its end."""
        with open_plain(file.path) as opened:
            while piece := opened.read(PIECE):
                yield piece


class Remote:
    """Everything below an address that fsspec knows, such as `s3://bucket/traces`."""

    def __init__(self, url: str) -> None:
        self.wrong: list[str] = []
        self._url = url

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system, and what it calls the address."""
        try:
            with _as_os_errors(ValueError, ImportError):
                system, root = import_module("fsspec.core").url_to_fs(self._url)
                return system, root
        except ImportError as error:
            raise _not_installed(self._url, error) from error
        except ValueError as error:
            raise WstraceError(
                f"{self._url}: {error}.",
                "Give a path, or an address such as s3://bucket/traces.",
            ) from error

    def files(self) -> Iterator[FarFile]:
        """Those of an object store in the order of names."""
        system, root = self._opened
        empty = True
        listed = _found(system, root) if _lists_at_once(system) else self._walked()
        for path, facts in listed:
            empty = False
            if kind_of(path.rpartition("/")[2]) is not None:
                marks = (facts.get(name) for name in ("ETag", "etag", "mtime", "LastModified"))
                mark = next((str(m) for m in marks if m), "")
                yield FarFile(path, int(facts.get("size") or 0), mark)
        if empty and not self.wrong:
            raise FileNotFoundError(errno.ENOENT, "nothing is there", root)

    def _walked(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Folder by folder: fsspec's own walk leaves out what it cannot list without a word."""
        system, root = self._opened
        waiting, alone = [root], True
        while waiting:
            folder = waiting.pop()
            try:
                with _as_os_errors():
                    listed = system.ls(folder, detail=True)
            except OSError as error:
                if folder == root:
                    raise
                self.wrong.append(clean_text(f"{folder}: {why(error)}"))
                continue
            for facts in listed:
                path = str(facts["name"]).rstrip("/")
                alone = alone and path == root
                if facts["type"] != "directory":
                    yield path, facts
                elif path != folder and not facts.get("islink"):
                    waiting.append(path)
        with _as_os_errors():
            if alone and system.isfile(root):  # a page of the web lists no other
                yield root, system.info(root)

    def pieces(self, file: FarFile) -> Iterator[bytes]:
        """One after the other, as the file system's block cache reads them."""
        with _as_os_errors(), self._opened[0].open(file.path, "rb") as opened:
            while piece := opened.read(PIECE):
                yield piece


def _lists_at_once(system: Any) -> bool:
    """Whether a file system has a listing of its own of all that is below an address."""
    alone = getattr(type(system), "_find", None)
    if alone is not None:
        return alone is not import_module("fsspec.asyn").AsyncFileSystem._find
    return type(system).find is not import_module("fsspec.spec").AbstractFileSystem.find


def _found(system: Any, root: str) -> list[tuple[str, dict[str, Any]]]:
    with _as_os_errors():
        found: dict[str, dict[str, Any]] = system.find(root, detail=True)
        return sorted(found.items())


@contextmanager
def _as_os_errors(*but: type[Exception]) -> Iterator[None]:
    """What fsspec's libraries raise as OSError: botocore, aiohttp and others have classes of
    their own. `but`: those that the caller takes."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (OSError, WstraceError, *but)):
            raise
        told = str(error).strip().splitlines()
        raise UnansweredError(": ".join((type(error).__name__, *told[:1]))) from error


def why(error: OSError) -> str:
    """What an error says, in words: some libraries name the path alone, or nothing."""
    if isinstance(error, FileNotFoundError) and not error.strerror and " " not in str(error):
        return os.strerror(errno.ENOENT)
    return error.strerror or str(error) or type(error).__name__


def _not_installed(url: str, error: ImportError) -> WstraceError:
    scheme = url.partition("://")[0]
    extra = "s3" if scheme == "s3" else "remote"
    return WstraceError(
        f"{scheme}:// needs a package that is not installed: {str(error).splitlines()[0]}",
        f"Install it with `pip install 'wstrace[{extra}]'`, or give a path.",
    )


class RayNodes:
    """One folder of every node of an existing Ray cluster: each node sends its own files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.wrong: list[str] = []

    @cached_property
    def _ray(self) -> Any:
        return connected()

    def files(self) -> Iterator[FarFile]:
        """Node by node. A node that is gone or does not answer is told, the others listed."""
        with _as_os_errors():
            lost, alive = gone(self._ray), nodes(self._ray)
        self.wrong += [
            clean_text(f"{host}: this Ray node is gone; what it has is not here")
            for host in lost
        ]
        for node, host in alive:
            try:
                found, wrong = on_node(self._ray, node, _list, self._folder)
            except OSError as error:
                self.wrong.append(clean_text(f"{host}: {error}"))
                continue
            self.wrong += [f"{host}: {told}" for told in wrong]
            for path, size, mark in found:
                yield FarFile(path, size, mark, node)

    def pieces(self, file: FarFile) -> Iterator[bytes]:
        """Read by tasks on the file's own node."""
        at, first = 0, None
        while True:
            piece, inode = on_node(self._ray, file.node, _read, file.path, at, PIECE)
            first = inode if first is None else first
            if inode != first:
                raise OSError("another file took its place while it was read")
            if not piece:
                return
            yield piece
            at += len(piece)


def _list(folder: str) -> tuple[list[tuple[str, int, str]], list[str]]:
    """The files of a folder of this node, and what could not be listed; none where it has no
    such folder."""
    place = Folder(Path(folder))
    if not place.root.exists():
        return [], []
    return [(file.path, file.size, file.mark) for file in place.files()], place.wrong


def _read(path: str, at: int, most: int) -> tuple[bytes, int]:
    """A piece of a file, and which file it is."""
    with open_plain(path) as opened:
        opened.seek(at)
        return opened.read(most), os.fstat(opened.fileno()).st_ino
