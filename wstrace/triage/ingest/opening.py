"""Open what a person hands over, and read it in bounded blocks of whole lines.

Logs come from everywhere: UTF-16 files of a Windows shell, holes of NUL bytes left by log
rotation, a single line of 100 MB. Memory never holds more than two blocks.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from wstrace.errors import WstraceError
from wstrace.file_names import trace_file_kind
from wstrace.plain_files import KINDS, OPEN_ALREADY, open_plain
from wstrace.trace.unread import end_alone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK: Final = 1 << 20
SAMPLE: Final = 1 << 16
NOTHING: Final = 64 << 20  # bytes of zeros and nothing else, from what may have no end
_LEAST_WIDE: Final = 16  # bytes; a shorter text says too little about its encoding
_PACKED: Final = {
    b"\x1f\x8b": ("gzip", "zcat {path} | wstrace triage -"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat {path} | wstrace triage -"),
    b"BZh": ("bzip2", "bzcat {path} | wstrace triage -"),
    b"\xfd7zXZ\x00": ("xz", "xzcat {path} | wstrace triage -"),
    b"PK\x03\x04": ("zip", "unzip -p {path} | wstrace triage -"),
}
_TEXT_CONTROLS: Final = frozenset(b"\t\n\r\f\b\x07\x1b\x00")
_CONTROLS: Final = bytes(c for c in range(32) if c not in _TEXT_CONTROLS) + b"\x7f"


@dataclass(frozen=True)
class Block:
    """Bytes of the input and the number of the line that they begin in (from 1)."""

    data: bytes
    first_line: int


def check_paths(paths: Sequence[str]) -> None:
    """Refuse what is missing, and what has no end, before anything is read."""
    for path in paths:
        if path == "-":
            continue
        try:
            mode = Path(path).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise WstraceError(
                f"{path} does not exist.", "Give a log file, a folder, or - for stdin."
            ) from None
        except OSError as error:  # a link in a circle, a folder that may not be read
            raise unreadable(path, error) from error
        if stat.S_ISREG(mode) and trace_file_kind(Path(path).name) == "end":
            raise end_alone(Path(path))
        kind = KINDS.get(stat.S_IFMT(mode))
        if kind and not (stat.S_ISFIFO(mode) and path.startswith(OPEN_ALREADY)):
            raise WstraceError(
                f"{path} is {kind}, not a file.",
                "Give a log file, or pipe a stream in: COMMAND | wstrace triage -",
            )


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The bytes of `path`, or of stdin for '-'. A file that grows ends where it ended when it
    was opened."""
    if path == "-":
        yield _bounded(sys.stdin.buffer)
        return
    try:
        stream = open_plain(path)
    except OSError as error:
        raise unreadable(path, error) from error
    with stream:
        yield _bounded(stream)


def _bounded(stream: BinaryIO) -> BinaryIO:
    """A regular file up to its present size; other streams as they are."""
    try:
        found = os.fstat(stream.fileno())
        left = found.st_size - stream.tell()
    except (OSError, ValueError):  # not a file of the system, or a pipe
        return stream
    if not stat.S_ISREG(found.st_mode) or left <= 0:
        return stream
    return cast("BinaryIO", _Bounded(stream, left))


class _Bounded:
    """The next `left` bytes of a stream."""

    def __init__(self, stream: BinaryIO, left: int) -> None:
        self._stream = stream
        self._left = left

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()


def blocks(stream: BinaryIO, path: str, size: int = BLOCK) -> Iterator[Block]:
    """Blocks of about `size` bytes, cut after a newline where one is near.

    A longer line is cut inside, and its pieces carry the same line number. WstraceError:
    the input is empty, compressed or not text.
    """
    line, rest, seen = 1, b"", False
    for data in _read(stream, path, size):
        seen = seen or bool(data.strip(b" \t\r\n\x00"))
        rest += data
        if len(rest) < size:
            continue
        cut = rest.rfind(b"\n") + 1 or _character_cut(rest)
        yield Block(rest[:cut], line)
        line += rest.count(b"\n", 0, cut)
        rest = rest[cut:]
    if not seen:
        raise WstraceError(
            f"{_name(path)} is empty.",
            "Nothing to read: save the server's log again, stderr included (2>&1).",
        )
    if rest:
        yield Block(rest, line)


def _read(stream: BinaryIO, path: str, size: int) -> Iterator[bytes]:
    try:
        first = stream.read(SAMPLE)
        _refuse_packed(first, path)
        decode = _wide_decoder(first)
        if decode is None:
            _refuse_binary(first, path)
        data, zeros = first, 0
        while data:
            zeros = zeros + len(data) if zeros >= 0 and not data.strip(b"\x00") else -1
            if zeros > NOTHING and not _is_regular(stream):
                raise WstraceError(
                    f"{_name(path)} gives nothing but zero bytes.",
                    "Give a log file, or pipe a log in: COMMAND | wstrace triage -",
                )
            yield decode.decode(data).encode("utf-8", "replace") if decode else data
            data = stream.read(size)
    except OSError as error:
        raise unreadable(path, error) from error


def _is_regular(stream: BinaryIO) -> bool:
    """True for a file, whose end is sure to come."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):
        return True


def _character_cut(data: bytes) -> int:
    """Where to cut a line that is too long, not inside a UTF-8 character."""
    cut = len(data)
    for back in range(1, 4):
        if data[cut - back] & 0xC0 == 0xC0:
            return cut - back
    return cut


def _wide_decoder(sample: bytes) -> codecs.IncrementalDecoder | None:
    """UTF-32 or UTF-16 by its mark; UTF-16 without one by zeros in every second byte alone.

    A hole of a rotated log has zeros in both.
    """
    if sample.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return codecs.getincrementaldecoder("utf-32")("replace")
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return codecs.getincrementaldecoder("utf-16")("replace")
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if len(sample) >= _LEAST_WIDE and max(even, odd) * 5 > len(sample) > 20 * min(even, odd):
        name = "utf-16-le" if odd > even else "utf-16-be"
        return codecs.getincrementaldecoder(name)("replace")
    return None


def _refuse_packed(sample: bytes, path: str) -> None:
    for magic, (kind, command) in _PACKED.items():
        if sample.startswith(magic):
            raise WstraceError(
                f"{_name(path)} is a {kind} file.",
                f"Unpack it first: {command.format(path=path if path != '-' else 'FILE')}",
            )


def _refuse_binary(sample: bytes, path: str) -> None:
    text = sample.replace(b"\x00", b"")
    controls = len(text) - len(text.translate(None, _CONTROLS))
    nul = len(sample) - len(text)
    if controls * 50 > len(text) or (nul * 10 > len(sample) and controls * 200 > len(text)):
        raise WstraceError(
            f"{_name(path)} is a binary file, not a log.",
            "Give the text of the log. For a screenshot, type the error line in by hand.",
        )


def unreadable(path: str, error: OSError) -> WstraceError:
    """The error for an input that the system does not let be read."""
    return WstraceError(
        f"{_name(path)} cannot be read: {error.strerror or error}.",
        "Check the path and its permissions.",
    )


def _name(path: str) -> str:
    return "Standard input" if path == "-" else path
