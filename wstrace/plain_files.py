"""Files that somebody named, or that lie where somebody can put one: read without waiting.

Opening a FIFO waits until somebody writes to it, a terminal waits for its user, and
/dev/zero never ends. None of them is a config, a baseline, a trace or source.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from wstrace.units import human

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
OPEN_ALREADY: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Where a shell's `<(COMMAND)` stands: a FIFO whose other end is at work."""


class TooLargeError(ValueError):
    """More than a file of its kind ever has."""


def open_plain(path: Path | str) -> BinaryIO:
    """A plain file's bytes, or those of what the shell has opened for us; /dev/null is empty.

    Raises OSError as open does, also for a FIFO, a device or a socket.
    """
    name = os.fspath(path)
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        why = _refused(descriptor, name)
        if why:
            raise OSError(errno.EINVAL, why, name)
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refused(descriptor: int, name: str) -> str:
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) or name.startswith(OPEN_ALREADY):
        return ""
    if stat.S_ISDIR(found.st_mode):
        return "a folder, not a file"
    null = stat.S_ISCHR(found.st_mode) and os.path.samestat(found, os.stat(os.devnull))
    return "" if null else f"{KINDS.get(stat.S_IFMT(found.st_mode), 'special')}, not a file"


def read_plain(path: Path | str, most: int) -> bytes:
    """All of it, at most `most` bytes. Raises OSError as open does, TooLargeError for more."""
    with open_plain(path) as file:
        # a file's size first: reading asks for as much memory as it may need
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, most) + 1) if size else file.read(most + 1)
    if len(data) > most or size > most:
        raise TooLargeError(f"larger than {human(most)}")
    return data
