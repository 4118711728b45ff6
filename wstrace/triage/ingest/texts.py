"""What a person hands over, as texts: files, folders and archives of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from wstrace.errors import WstraceError
from wstrace.file_names import trace_file_kind
from wstrace.triage.ingest import archives, opening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILES: Final = 10_000


@dataclass(frozen=True)
class Input:
    """One text: `path` is what can be given again, `part` the member of an archive.

    `alone` is False for one of many in a folder or an archive, which is left out where it is
    no text.
    """

    path: str
    stream: BinaryIO
    part: str = ""
    alone: bool = True

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.path}: {self.part}" if self.part else self.path


def texts(paths: Sequence[str], notes: list[str]) -> Iterator[Input]:
    """Every text of `paths`, each open while it is the current one. WstraceError: a path is
    missing, no file, or an archive that is damaged."""
    opening.check_paths(paths)
    for path in paths:
        if path != "-" and Path(path).is_dir():
            yield from _of_folder(path, notes)
        elif path != "-" and archives.is_archive(path):
            yield from _of_archive(path, notes)
        elif path != "-" and archives.is_packed(path):
            with archives.unpacked(path, notes) as stream:
                yield Input(path, stream)
        else:
            with opening.opened(path) as stream:
                yield Input(path, stream)


def _of_folder(folder: str, notes: list[str]) -> Iterator[Input]:
    """The regular files below `folder`, by name; links and hidden ones are left out."""
    files = []
    for path in sorted(Path(folder).rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or path.is_symlink():
            continue
        if path.is_file():
            files.append(path)
        elif not path.is_dir():
            notes.append(f"{inside} is no regular file: left out")
    if any(trace_file_kind(path.name) == "records" for path in files):
        raise WstraceError(
            f"{folder} is a trace folder.", "`wstrace report` and `wstrace gate` read it."
        )
    if len(files) > FILES:
        notes.append(f"{folder} holds more than {FILES:,} files: the rest is left out")
    for path in files[:FILES]:
        if archives.is_archive(str(path)):
            yield from _of_archive(str(path), notes)
            continue
        if archives.is_packed(str(path)):
            with archives.unpacked(str(path), notes) as stream:
                yield Input(str(path), stream, alone=False)
            continue
        with opening.opened(str(path)) as stream:
            yield Input(str(path), stream, alone=False)


def _of_archive(path: str, notes: list[str]) -> Iterator[Input]:
    for name, stream in archives.members(path, notes):
        yield Input(path, stream, name, alone=False)
