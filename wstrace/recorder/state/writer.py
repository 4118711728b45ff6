"""The writer of one process's trace file: append-only, one `os.write` a record.

SIGKILL at any moment loses no record that was written. Where the file cannot be made or a
write fails (read-only folder, disk full), the writer stands down and says so once on stderr,
and in the file: the header's `lost` is blank and as wide as LAST_WORD from the start, so that
the reason can be put there when no byte can be appended any more. A request that vLLM refused
is told there too when its own record could not be written, else once on stderr.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from wstrace.file_names import process_file
from wstrace.files import open_above
from wstrace.trace.decoding import record_decoder
from wstrace.trace.records import Failure, Header, Record

LAST_WORD = 240  # bytes of the header's `lost`
LAST_REASON = 160  # of them for the reason: time, and a refused request, stand behind it
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def new_file_name(run: str) -> str:
    """`RUN.HOST.pid.start_ns.rand.wst.jsonl`: unique without asking the file system."""
    mark = secrets.token_hex(4)
    return process_file(run, socket.gethostname(), os.getpid(), time.time_ns(), mark)


class UnwritableError(Exception):
    """A record that has something which JSON does not, such as a NumPy integer."""


class TraceWriter:
    """Writes records of this process; the file appears with the first record.

    After a fork the child opens a file of its own. `header` makes the first record of a
    file. Never raises but for a record that is none.
    """

    def __init__(self, directory: str | None, run: str, header: Callable[[], Header]) -> None:
        self._directory = directory
        self._run = run
        self._header = header
        self._encode = msgspec.json.Encoder().encode
        self._fd: int | None = None
        self._pid = 0
        self._dead = directory is None
        self._file: tuple[int, int] = (0, 0)  # device and inode of the open file
        self._room_at = 0
        self._lost = ""
        self._lost_refusal = False
        self.path: Path | None = None
        self.on_open: list[Callable[[], None]] = []

    def write(self, record: Record) -> None:
        """Append one record; `record.ns` is set here.

        UnwritableError for one that cannot be written as JSON: it is lost, and no other.
        """
        if self._dead:
            self._lose(record)
            return
        try:
            if self._pid != os.getpid():
                self._open()
            elif not self._is_ours():
                self._reopen()
            self._put(self._line(record))
        except UnwritableError:
            raise
        except Exception as error:
            self.stand_down(error, record)

    @property
    def is_open(self) -> bool:
        """Whether this process has a file of its own (a forked child first writes one)."""
        return self._fd is not None and self._pid == os.getpid()

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        self._dead = True
        if self._fd is not None and self.is_open and self._is_ours():
            os.close(self._fd)
        self._fd = None

    def _line(self, record: Record) -> bytes:
        """A layer may ask for more than 64 bits can say, and a text of the system's (a file
        name, a process title) may be no UTF-8: such a record is made fit."""
        record.ns = time.monotonic_ns()
        try:
            try:
                line = self._encode(record)
                record_decoder()(line)
            except (msgspec.ValidationError, UnicodeEncodeError):
                line = self._encode(as_json_holds(msgspec.to_builtins(record)))
            return line + b"\n"
        except Exception as error:
            raise UnwritableError(str(error)) from error

    def _put(self, line: bytes) -> None:
        assert self._fd is not None
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(28, "short write, disk full?")

    def _open(self, earlier: str = "") -> None:
        """Start a file; `earlier`: what was lost before it."""
        assert self._directory is not None
        self._pid = os.getpid()
        before, self.path = self.path, Path(self._directory) / new_file_name(self._run)
        self._fd = open_above(self.path, _FLAGS, 0o600)
        self._file = _identity(self._fd)
        header = self._header()
        header.parent = before.name if before is not None else None
        header.lost = earlier.ljust(LAST_WORD)[:LAST_WORD]
        try:
            line = self._line(header)
        except UnwritableError as error:  # without it the file is none
            raise OSError(str(error)) from error
        self._put(line)
        self._room_at = line.index(b'"lost":"') + len('"lost":"')
        for callback in self.on_open:
            callback()

    def _is_ours(self) -> bool:
        """Whether the descriptor is still our file, and the file still has a name.

        The application may close descriptors it did not open; the number is then free for
        another file, which must get none of our bytes.
        """
        assert self._fd is not None
        try:
            found = os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file and found.st_nlink > 0

    def _reopen(self) -> None:
        """Go on in the same file by its name; in a new one where that is gone."""
        assert self.path is not None
        try:
            handle = open_above(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            )
        except FileNotFoundError:
            self._open("an earlier trace file of this process was deleted")
            return
        if _identity(handle) != self._file:
            os.close(handle)
            self._open("an earlier trace file of this process was replaced")
            return
        self._fd = handle

    def stand_down(self, error: Exception, record: Record) -> None:
        """`record` could not be written: stop for good, and say so once."""
        if not self._dead:
            self._dead = True
            self._lost = f"{str(error)[:LAST_REASON]} ({time.monotonic_ns()} ns)"
            to_stderr(f"cannot write the trace ({error}); recording stops, serving goes on")
            self._leave_word(self._lost)
        self._lose(record)

    def _lose(self, record: Record) -> None:
        """A record comes after the end: a refusal is still told, once."""
        if not self._lost or self._lost_refusal or not isinstance(record, Failure):
            return
        self._lost_refusal = True
        if not self._leave_word(f"{self._lost}; vLLM refused a request after that"):
            to_stderr("vLLM refused a request, and no trace can say so")

    def _leave_word(self, text: str) -> bool:
        """Put `text` into the header's room, in place: this works on a full disk."""
        if self.path is None or not self._room_at:
            return False
        # In the room no byte may need more than itself: no quote, backslash or other script.
        plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
        plain = plain.replace('"', "'").replace("\\", "/")[:LAST_WORD]
        try:
            handle = open_above(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _identity(handle) != self._file:
                    return False
                os.pwrite(handle, plain.ljust(LAST_WORD).encode(), self._room_at)
            finally:
                os.close(handle)
        except OSError:
            return False
        return True


def to_stderr(text: str) -> None:
    """A line for whoever reads the server's output, where the trace cannot hold it."""
    with suppress(OSError):
        os.write(2, f"wstrace: {text}\n".encode(errors="replace"))


def _identity(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def as_json_holds(value: Any) -> Any:
    """Plain JSON data with each larger number as the largest that a record may have, and each
    surrogate, which JSON does not have, spelt.

    A layer can ask for any number of bytes, 2**64 for a shape that PyTorch then refuses: what
    vLLM says of it stands beside it in the failure's text.
    """
    if isinstance(value, dict):
        return {as_json_holds(key): as_json_holds(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_holds(one) for one in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, -(2**63)), 2**63 - 1)
    return value
