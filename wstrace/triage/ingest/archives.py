"""Logs inside an archive: streamed member by member, never unpacked to the disk.

A member's name is only shown, so it can lead nowhere; sizes are limited before anything is
read.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tarfile
import zipfile
import zlib
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from wstrace.errors import WstraceError
from wstrace.units import human

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

BYTES: Final = 1 << 30  # of all members together, unpacked
MEMBERS: Final = 10_000
_TAR: Final = (257, b"ustar")  # where a tar's first header has its name
_HEAD: Final = 512
_LONGEST_NAME: Final = 1 << 20  # bytes
_CHECKED: Final = 64  # MiB behind the last member
_PACKED: Final = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
_BROKEN: Final = (
    OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error,
    struct.error, NotImplementedError, RuntimeError, ValueError,
)  # fmt: skip
"""What Python's readers of archives raise on damaged or unknown ones."""


def is_archive(path: str) -> bool:
    """True for a zip or a tar, compressed or not; False also for what cannot be read."""
    if not Path(path).is_file():  # a pipe's bytes can be read once only
        return False
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD)
        return head.startswith(b"PK\x03\x04") or _is_tar(head) or _packs_a_tar(path, head)
    except _BROKEN:
        return False


def members(path: str, notes: list[str]) -> Iterator[tuple[str, BinaryIO]]:
    """Name and bytes of each regular member, in the archive's order, one at a time.

    What is left out is told in `notes`. WstraceError: the archive is damaged.
    """
    found = _zipped(path, notes) if zipfile.is_zipfile(path) else _taped(path)
    total = count = 0
    try:
        for name, size, opened in found:
            total, count = total + size, count + 1
            if total > BYTES or count > MEMBERS:
                notes.append(
                    f"{Path(path).name} holds more than {_limit(count)}: the rest is left"
                )
                return
            if _is_log(name) and size:
                with closing(opened()) as stream:
                    yield name, cast("BinaryIO", _Member(path, stream, BYTES))
    except _BROKEN as error:
        raise _damaged(path, error) from error


def is_packed(path: str) -> bool:
    """True for one compressed file that is no archive; False also for what cannot be read."""
    if not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(_HEAD).startswith(tuple(_PACKED))
    except OSError:
        return False


@contextmanager
def unpacked(path: str, notes: list[str]) -> Iterator[BinaryIO]:
    """The bytes of a compressed file, up to BYTES of them. What is left is told in `notes`;
    WstraceError while reading: the file is damaged."""
    with _unpacked(path) as stream:
        found = _Member(path, stream, BYTES)
        yield cast("BinaryIO", found)
        if found.left <= 0:
            notes.append(f"{Path(path).name} holds more than {human(BYTES)}: the rest is left")


class _Member:
    """The bytes of one member; damage in it is the archive's."""

    def __init__(self, path: str, stream: IO[bytes], left: int) -> None:
        self.left = left
        self._path = path
        self._stream = stream

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end only."""
        try:
            data = self._stream.read(min(size, self.left))
        except _BROKEN as error:
            raise _damaged(self._path, error) from error
        self.left -= len(data)
        return data


def _damaged(path: str, error: Exception) -> WstraceError:
    return WstraceError(
        f"{path} cannot be read as an archive: {error or type(error).__name__}.",
        "It may be cut off or damaged: pack it again, or unpack what is whole of it.",
    )


def _limit(count: int) -> str:
    return f"{MEMBERS:,} files" if count > MEMBERS else f"{human(BYTES)} unpacked"


def _is_log(name: str) -> bool:
    base = name.rpartition("/")[2]
    return bool(base) and not base.startswith("._") and "__MACOSX/" not in name


_Found = tuple[str, int, "Callable[[], IO[bytes]]"]


def _zipped(path: str, notes: list[str]) -> Iterator[_Found]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.flag_bits & 1:
                notes.append(f"{info.filename} is encrypted: left out")
            elif not info.is_dir():
                yield info.filename, info.file_size, lambda info=info: archive.open(info)  # type: ignore[misc]


class _Header(tarfile.TarInfo):
    """A header whose long names are not read into memory without end."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in tarfile.REGULAR_TYPES and self.size > _LONGEST_NAME:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


def _taped(path: str) -> Iterator[_Found]:
    with _unpacked(path) as stream:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
            for info in archive:
                if info.isreg():
                    yield info.name, info.size, lambda info=info: _extracted(archive, info)  # type: ignore[misc]
        for _ in range(_CHECKED):  # the checksum of what is packed stands at its end
            if not stream.read(1 << 20):
                break


def _extracted(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(info)
    if stream is None:
        raise tarfile.ReadError(f"{info.name} has no data")
    return stream


def _unpacked(path: str) -> IO[bytes]:
    """The bytes of a file that may be compressed."""
    with Path(path).open("rb") as file:
        head = file.read(_HEAD)
    kind = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), "")
    found: object
    if kind == "gzip":
        found = gzip.GzipFile(path)
    elif kind == "bz2":
        found = bz2.BZ2File(path)
    elif kind == "xz":
        found = lzma.LZMAFile(path)  # noqa: SIM115
    else:
        found = Path(path).open("rb")  # noqa: SIM115
    return cast("IO[bytes]", found)


def _is_tar(head: bytes) -> bool:
    start, name = _TAR
    return head[start : start + len(name)] == name


def _packs_a_tar(path: str, head: bytes) -> bool:
    if not head.startswith(tuple(_PACKED)):
        return False
    with _unpacked(path) as stream:
        return _is_tar(stream.read(_HEAD))
