"""A folder for copies that nobody keeps: it goes at the end, or at the next start."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "wstrace-fleet-"
_LOCK: Final = "lock"


@contextmanager
def folder_of_its_own() -> Iterator[Path]:
    """A folder of this process in TMPDIR; those of processes that were killed go first.

    Raises OSError.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            _swept(left)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        fresh = Path(name, f"{_LOCK}.new")
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            fresh.rename(Path(name, _LOCK))  # under its name it is locked from the beginning
            yield Path(name)
        finally:
            os.close(handle)


def _swept(folder: Path) -> None:
    """Remove a folder whose owner is dead: the kernel lets go of a dead process's lock."""
    if folder.lstat().st_uid != os.geteuid():
        return
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
