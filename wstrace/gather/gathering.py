"""Copying the files of traces into one folder a run: resumable, checked, never two runs mixed.

A file is copied beside its place, its bytes are compared with those that were read, and only
then does it get its name. `gathered.json` of each run says what came from where; a second call
copies what is new or has changed since.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from wstrace.errors import WstraceError, one_line
from wstrace.file_names import RUN_FILE, name_of_its_own, part_of_name
from wstrace.files import write_whole
from wstrace.fleet.found_files import FoundFile, kind_of, look, named_kind
from wstrace.gate.runs import ends_worse
from wstrace.gather.places import FarFile, Place
from wstrace.plain_files import read_plain
from wstrace.trace.run_file import read_run

MANIFEST: Final = "gathered.json"
LOGS, UNREAD = "logs", "unread"
HIDDEN: Final = ".part."
_LARGEST: Final = 256 << 20
EVERY: Final = 200
"""Files after which the manifests are written: a call that is killed loses no more of them."""
Tell = Callable[[str], None]


class Copied(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a manifest: its name there, where it came from, and what it was then."""

    name: str
    source: str
    size: int
    mark: str
    digest: str
    kept: bool = True


class Manifest(msgspec.Struct, omit_defaults=True):
    """`gathered.json`, version 1: `files` by where they came from."""

    version: int = 1
    run: str = ""
    files: dict[str, Copied] = {}


@dataclass
class Gathered:
    """How it went: files copied and kept from before, runs, and what was wrong."""

    copied: int = 0
    known: int = 0
    bytes: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def gather(
    places: Iterable[tuple[str, Place]], folder: Path, run: str | None, tell: Tell
) -> Gathered:
    """Bring the files of `places` (each with its name) below `folder`; `run`: only this one.

    A file that cannot be read is told in `failed`, and the rest goes on. Raises WstraceError
    where a place cannot be used at all, and OSError where `folder` cannot be written.
    """
    done = Gathered()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    manifests = _Manifests(folder)
    try:
        for name, place in places:
            for file in _listed(name, place, done):
                _one(place, file, manifests, run, done)
                tell(file.name)
    finally:  # what was copied is known to the next call, whatever ended this one
        manifests.write()
    done.runs = manifests.counts()
    return done


def _one(
    place: Place, file: FarFile, manifests: _Manifests, run: str | None, done: Gathered
) -> None:
    source = f"{file.node[:12]}:{file.path}" if file.node else file.path
    if manifests.has(source, file):
        done.known += 1
        return
    try:
        _bring(place, file, source, manifests, run, done)
    except OSError as error:
        done.failed.append(one_line(f"{source}: {error.strerror or error}"))
    if done.copied % EVERY == 0:
        manifests.write()


def _listed(name: str, place: Place, done: Gathered) -> Sequence[FarFile]:
    try:
        return list(place.files())
    except OSError as error:
        done.failed.append(one_line(f"{name}: {error.strerror or error}"))
        return []


def _bring(
    place: Place,
    file: FarFile,
    source: str,
    manifests: _Manifests,
    run: str | None,
    done: Gathered,
) -> None:
    with tempfile.TemporaryDirectory(dir=manifests.folder, prefix=HIDDEN) as folder:
        part = Path(folder, os.path.basename(file.name) or "file")
        made = hashlib.blake2b(digest_size=16)
        with part.open("wb") as written:
            for piece in place.pieces(file):
                made.update(piece)
                written.write(piece)
        found = look(str(part), kind_of(part.name) or named_kind(part))
        if found.digest != made.hexdigest():
            raise OSError(f"what was written is not what was read ({found.wrong})")
        if run is None or found.run.startswith(run):
            done.copied += 1
            done.bytes += found.size
            _place(found, file, source, manifests, done)


def _place(
    found: FoundFile, file: FarFile, source: str, manifests: _Manifests, done: Gathered
) -> None:
    """Give a copied file its name, in its run's folder."""
    run = LOGS if found.kind == "log" else found.run or UNREAD
    manifest, folder = manifests.of(run, own=run in (LOGS, UNREAD))
    name = Path(found.path).name
    if found.kind == "end":
        name = RUN_FILE
    elif run in (LOGS, UNREAD):
        name = f"{found.digest[:8]}-{name}"
    target = folder / name
    kept = _better(Path(found.path), target, found, done)
    if kept:
        os.chmod(found.path, 0o600)
        os.replace(found.path, target)
    manifest.files[source] = Copied(name, source, found.size, file.mark, found.digest, kept)


def _better(new: Path, old: Path, found: FoundFile, done: Gathered) -> bool:
    """Whether a file takes the place of one of its name that is there."""
    if not old.exists():
        return True
    before = look(str(old), found.kind)
    if before.digest == found.digest:
        return False
    if found.kind == "end":
        return ends_worse(read_run(new), read_run(old))
    done.words.append(f"{old.name} was there with other bytes: the longer one is kept")
    return new.stat().st_size > old.stat().st_size


class _Manifests:
    """The manifests of a folder, by run; what they know of each source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_folder: dict[Path, Manifest] = {}
        for file in sorted(folder.glob(f"*/{MANIFEST}")):
            self._by_folder[file.parent] = _read_manifest(file)

    def has(self, source: str, file: FarFile) -> bool:
        """Whether this source was copied as it is now, and its copy is still there."""
        for folder, manifest in self._by_folder.items():
            known = manifest.files.get(source)
            if known is not None and (known.size, known.mark) == (file.size, file.mark):
                there = folder / known.name
                return there.is_file() and (
                    not known.kept or there.stat().st_size == known.size
                )
        return False

    def of(self, run: str, *, own: bool) -> tuple[Manifest, Path]:
        """The manifest of a run and its folder, made where it is new."""
        folder = self.folder / (run if own else folder_name(run))
        folder.mkdir(mode=0o700, exist_ok=True)
        return self._by_folder.setdefault(folder, Manifest(run="" if own else run)), folder

    def write(self) -> None:
        """Every manifest, whole."""
        for folder, manifest in self._by_folder.items():
            data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            write_whole(data, folder / MANIFEST, 0o600)

    def counts(self) -> dict[str, int]:
        """Files kept by run, or by folder where they are of none."""
        return {
            manifest.run or folder.name: len({f.name for f in manifest.files.values()})
            for folder, manifest in sorted(self._by_folder.items())
        }


def _read_manifest(path: Path) -> Manifest:
    try:
        return msgspec.json.decode(read_plain(path, _LARGEST), type=Manifest)
    except (OSError, ValueError, RecursionError) as error:
        raise WstraceError(
            f"{path} cannot be read: {one_line(str(error))}.",
            "Delete it: the files of that run are then copied again.",
        ) from error


def folder_name(run: str) -> str:
    """A run's id as a folder may be called; one that had to be changed gets a digest."""
    if run == part_of_name(run).strip(".") and run not in ("", LOGS, UNREAD):
        return run
    return name_of_its_own(run, "run", 100)
