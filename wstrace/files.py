"""Where output goes: stdout or a file that appears whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wstrace.errors import WstraceError
from wstrace.file_names import RUN_FILE, trace_file_kind


def write_output(
    text: str | bytes | Iterator[str], target: Path | None, *, force: bool = True
) -> None:
    """Write text, bytes or pieces of a text to stdout (None or `-`), or to a file by rename.

    A device or a pipe (`/dev/stdout`) is written to, not replaced. With `force` False an
    existing file is refused; a trace's own files always are. Raises WstraceError (exit 2)
    when the file cannot be written; then nothing is left behind.
    """
    if target is None or str(target) == "-":
        _to_stdout(text)
        return
    data = _bytes(text)
    with naming(target):
        if _is_of_a_trace(target):
            raise WstraceError(
                f"{target} is part of a trace and is not overwritten.", "Choose another -o."
            )
        if target.exists() and not (target.is_file() or target.is_dir()):
            with open(target, "wb", opener=_opened_at_once) as file:
                file.writelines(data)
            return
        if (target.exists() or target.is_symlink()) and not force:
            raise WstraceError(f"{target} exists.", "Choose another -o, or add --force.")
        write_whole(data, target)


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """WstraceError that names `target` where the block cannot write it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WstraceError(
            f"Cannot write {target}: {error.strerror or error}.",
            "Give a folder that can be written, with room on its disk.",
        ) from error


def _opened_at_once(path: str, flags: int) -> int:
    """Opening a FIFO waits until somebody reads it: WstraceError where nobody does."""
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            raise WstraceError(
                f"Cannot write {path}: it is a FIFO that nobody reads.",
                "Start its reader first, or name a file with -o.",
            ) from error
        raise
    os.set_blocking(handle, True)
    return handle


def open_above(path: Path | str, flags: int, mode: int = 0o666) -> int:
    """As os.open, with a descriptor above 2.

    Where a daemon closed its standard streams the next file gets their number, and with it
    what anybody prints.
    """
    handle = os.open(path, flags | os.O_CLOEXEC, mode)
    if handle > 2:
        return handle
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(handle)


def _is_of_a_trace(target: Path) -> bool:
    """A trace's own file, by its name; an earlier run's run.ID.json also by how it begins:
    other files may be called so too."""
    kind = trace_file_kind(target.name)
    if kind == "records" or target.name == RUN_FILE:
        return True
    if kind is None or not target.is_file():
        return False
    with target.open("rb") as file:
        return file.read(64).replace(b" ", b"").replace(b"\n", b"").startswith(b'{"run":')


def _bytes(text: str | bytes | Iterator[str]) -> Iterable[bytes]:
    if isinstance(text, bytes):
        return [text]
    pieces = [text] if isinstance(text, str) else text
    return (piece.encode(errors="surrogateescape") for piece in pieces)


def _to_stdout(text: str | bytes | Iterator[str]) -> None:
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    elif isinstance(text, str):
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    else:
        sys.stdout.writelines(text)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it. Raises WstraceError where that cannot be done."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise WstraceError(
            f"Cannot make the folder {folder}: {error.strerror}.",
            "Give one that can be written with -o.",
        ) from error


def user_cache() -> Path:
    """Where the user's own cache of wstrace is; nothing is made.

    A relative XDG_CACHE_HOME is left aside, as the XDG base directory specification says.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or ".")
    return (base if base.is_absolute() else Path.home() / ".cache") / "wstrace"


def write_whole(data: bytes | Iterable[bytes], target: Path, mode: int = 0o644) -> None:
    """`data` as a file that appears whole or not at all. Raises OSError."""
    with replacing(target, mode) as part, open(part, "wb", opener=open_above) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


@contextmanager
def replacing(target: Path, mode: int = 0o644) -> Iterator[Path]:
    """A file beside `target` to be written; it takes its place, with these permissions, where
    the block ends well.

    After an error nothing is left behind, and what stood there stays.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(mode)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
