"""The writer of one process's trace file: append-only, one `os.write` a record.

SIGKILL at any moment loses no record that was written. Where the file cannot be made or a
write fails (read-only folder, disk full), the writer says so once and stands down.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from wstrace.trace.records import Header, Record

SUFFIX = ".wst.jsonl"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def new_file_name(run: str) -> str:
    """`RUN.HOST.pid.start_ns.rand.wst.jsonl`: unique without asking the file system."""
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname())[:40]
    return f"{run}.{host}.{os.getpid()}.{time.time_ns()}.{secrets.token_hex(4)}{SUFFIX}"


class TraceWriter:
    """Writes records of this process; the file appears with the first record.

    After a fork the child opens a file of its own. `header` makes the first record of a
    file. Never raises.
    """

    def __init__(self, directory: str | None, run: str, header: Callable[[], Header]) -> None:
        self._directory = directory
        self._run = run
        self._header = header
        self._encode = msgspec.json.Encoder().encode
        self._fd: int | None = None
        self._pid = 0
        self._dead = directory is None
        self.path: Path | None = None
        self.on_open: list[Callable[[], None]] = []

    def write(self, record: Record) -> None:
        """Append one record; `record.ns` is set here."""
        if self._dead:
            return
        try:
            if self._pid != os.getpid():
                self._open()
            self._append(record)
        except Exception as error:
            self._stand_down(error)

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        self._dead = True
        if self._fd is not None and self._pid == os.getpid():
            os.close(self._fd)
        self._fd = None

    def _append(self, record: Record) -> None:
        record.ns = time.monotonic_ns()
        line = self._encode(record) + b"\n"
        assert self._fd is not None
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(28, "short write, disk full?")

    def _open(self) -> None:
        assert self._directory is not None
        self._pid = os.getpid()
        self.path = Path(self._directory) / new_file_name(self._run)
        self._fd = os.open(self.path, _FLAGS, 0o600)
        self._append(self._header())
        for callback in self.on_open:
            callback()

    def _stand_down(self, error: Exception) -> None:
        self._dead = True
        text = f"wstrace: cannot write the trace ({error}); recording stops, serving goes on\n"
        os.write(2, text.encode())
