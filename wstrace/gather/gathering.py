"""Copying the files of traces into one folder a run: resumable, checked, never two runs mixed.

A file is copied beside its place, its bytes are compared with those that were read, and only
then does it get its name. `gathered.json` of each run says what came from where; a second call
copies what is new or has changed since.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError
from wstrace.file_names import RUN_FILE, SUFFIX, command_file, named_run, part_of_name
from wstrace.files import naming
from wstrace.fleet.found_files import FoundFile, kind_of, look, named_kind, process_of
from wstrace.gather.copies import LOGS, PART, UNREAD, Copied, Copies, alone, file_name
from wstrace.gather.places import FarFile, Place, UnansweredError, why
from wstrace.trace.cleaning import clean_text
from wstrace.trace.each_once import same_beginning
from wstrace.trace.run_file import read_run
from wstrace.units import plural

Tell = Callable[[str, int, int | None], None]
"""What is done, how much of it, of how much."""
PATIENCE: Final = 3
"""Files in a row without an answer from which a place is left: each may take a minute."""
BUSY: Final = "Another gather works in this folder: waiting until it has ended."


@dataclass
class Gathered:
    """How it went: files copied and kept from before, runs, and what was wrong.

    `listed` files were there, of the run that is asked for or of `others`. `silent` places
    could not be listed, `refused` has those for which something can be done; `failed` tells
    them too. `passed_over` are copies that this folder has: they come from elsewhere.
    """

    listed: int = 0
    passed_over: int = 0
    copied: int = 0
    known: int = 0
    bytes: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)
    silent: int = 0
    refused: list[WstraceError] = field(default_factory=list)


def gather(
    places: Iterable[tuple[str, Place]],
    folder: Path,
    run: str | None,
    tell: Tell,
    say: Callable[[str], None] = lambda word: None,
    *,
    only_listed: bool = False,
) -> Gathered:
    """Bring the files of `places` (each with its name) below `folder`; `run`: only this one, or
    those whose ids begin so where none is called so.

    A file or a place that cannot be read is told in `failed`, and the rest goes on. Another
    call that works in `folder` is waited for, which `say` is told. `only_listed`: what no place
    has any longer goes here too, unless a part could not be listed. Raises WstraceError where a
    manifest cannot be read or a file not be written, and OSError where `folder` cannot be used.
    """
    done = Gathered()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone(folder, lambda: say(BUSY)), Copies(folder) as copies:
        lists = [
            (name, place, *_listed(name, place, number, copies, done))
            for number, (name, place) in enumerate(places)
        ]
        if only_listed and all(whole for *_, whole in lists):
            copies.forget_unlisted()
        asked = _WantedRun(run, bool(run) and copies.has_run(run or ""))
        for number, (name, place, total, _) in enumerate(lists):
            files = copies.to_look_at(number)
            _take(name, place, files, total, copies, asked, done, tell)
        done.runs = copies.counts()
        done.passed_over = copies.passed_over
    return done


@dataclass
class _WantedRun:
    """The run that is asked for, None or empty for all; `exact`: one has this very id."""

    run: str | None
    exact: bool

    def takes(self, found: str) -> bool:
        """Whether a file of that run is wanted."""
        if not self.run:
            return True
        self.exact = self.exact or found == self.run
        return found == self.run if self.exact else found.startswith(self.run)


def _take(
    name: str,
    place: Place,
    files: Iterator[FarFile],
    total: int,
    copies: Copies,
    asked: _WantedRun,
    done: Gathered,
    tell: Tell,
) -> None:
    """Bring the `total` files of one place."""
    unanswered = 0
    for number, file in enumerate(files, 1):
        answered = _one(place, file, copies, asked, done)
        unanswered = 0 if answered else unanswered + 1
        tell(name, number, total)
        if unanswered == PATIENCE and number < total:
            left = plural(total - number, "more file")
            done.failed.append(clean_text(f"{name}: {left}: it no longer answers"))
            break


def _listed(
    name: str, place: Place, number: int, copies: Copies, done: Gathered
) -> tuple[int, bool]:
    """How many files a place has, and whether that is all of them."""
    total, whole = 0, False
    try:
        total = copies.listed(place.files(), number)
        whole = not place.wrong
    except OSError as error:
        whole = isinstance(error, FileNotFoundError)  # nothing is there
        done.failed.append(clean_text(f"{name}: {why(error)}"))
        done.silent += 1
    except WstraceError as error:
        told = error.message if name in error.message else f"{name}: {error.message}"
        done.failed.append(clean_text(f"{told} {error.hint}"))
        done.refused.append(error)
        done.silent += 1
    done.failed += place.wrong
    done.listed += total
    return total, whole


def _one(
    place: Place, file: FarFile, copies: Copies, asked: _WantedRun, done: Gathered
) -> bool:
    """Bring a file that is not there yet; False where its place gave no answer."""
    source = file.source
    known = copies.run_of(source, file)
    if known is not None:
        if _is_asked_for(asked, known, done):
            done.known += 1
        return True
    try:
        _bring(place, file, source, copies, asked, done)
    except OSError as error:
        done.failed.append(clean_text(f"{source}: {why(error)}"))
        return not isinstance(error, UnansweredError)
    return True


def _is_asked_for(asked: _WantedRun, found: str, done: Gathered) -> bool:
    wanted = asked.takes(found)
    if not wanted:
        done.others.add(found)
    return wanted


def _bring(
    place: Place, file: FarFile, source: str, copies: Copies, asked: _WantedRun, done: Gathered
) -> None:
    with _part(copies.folder) as folder:
        part = Path(folder, file_name(file.name))
        digest, size = _written(place.pieces(file), part, copies.folder / part.name)
        if size < file.size:
            raise OSError(f"it shrank while it was read, from {file.size:,} bytes to {size:,}")
        found = look(str(part), kind_of(part.name) or named_kind(part))
        if found.digest != digest:
            raise OSError(f"what was written is not what was read ({found.wrong})")
        if _is_asked_for(asked, found.run, done):
            done.copied += 1
            done.bytes += found.size
            with naming(copies.folder / part.name):
                _place(found, file, source, copies, done)


def _part(folder: Path) -> tempfile.TemporaryDirectory[str]:
    with naming(folder):
        return tempfile.TemporaryDirectory(dir=folder, prefix=PART)


def _written(pieces: Iterator[bytes], part: Path, named: Path) -> tuple[str, int]:
    """The digest and the bytes of what was read into `part`. OSError where it cannot be read,
    and WstraceError, which calls the file `named`, where it cannot be written: nor can another.
    """
    made, size = hashlib.blake2b(digest_size=16), 0
    with naming(named):
        written = part.open("wb", buffering=0)
    with written:
        for piece in pieces:
            made.update(piece)
            size += len(piece)
            left = memoryview(piece)
            while left:
                with naming(named):
                    left = left[written.write(left) :]
    return made.hexdigest(), size


def _place(
    found: FoundFile, file: FarFile, source: str, copies: Copies, done: Gathered
) -> None:
    """Give a copied file its name, in its run's folder."""
    shared = LOGS if found.kind == "log" else "" if found.run else UNREAD
    folder = copies.place(found.run, shared)
    target = folder / _name(found, source, folder, shared, copies, done)
    there = look(str(target), found.kind) if target.exists() else None
    same = there is not None and there.digest == found.digest
    better = there is None or (not same and _better(found, there, done))
    if better:
        os.chmod(found.path, 0o600)
        os.replace(found.path, target)
    if found.kind == "records" and not found.wrong:
        copies.keeps(folder, found.process, target.name)
    kept = better or same
    copied = Copied(target.name, source, found.size, file.mark, found.digest, kept)
    copies.add(folder, copied)


def _name(
    found: FoundFile, source: str, folder: Path, shared: str, copies: Copies, done: Gathered
) -> str:
    """The name that a file gets: a process has one, whatever its file is called."""
    name = Path(found.path).name
    if shared:
        return f"{found.digest[:8]}-{name}"
    if found.kind == "end":
        return _end_name(found, source, folder, copies)
    if found.wrong:
        return name
    known = copies.of_process(folder, found.process)
    if known and same_beginning(folder / known, Path(found.path)):
        if _is_own(known, found) or not _is_own(name, found) or _is_taken(folder / name):
            return known
        copies.rename(folder, known, name)  # it came under a copy's name first
        return name
    if known:
        done.words.append(f"{known} and {name} are of one process and differ: both are kept")
        return _marked(known, found.digest[:8])
    if not _is_taken(folder / name):
        return name
    # somebody gave two processes' files one name
    made = hashlib.blake2b(found.process.encode(), digest_size=4).hexdigest()
    return _marked(name, made)


def _is_own(name: str, found: FoundFile) -> bool:
    """Whether a process's recorder gave that name: run.json and forked children say it."""
    return bool(found.run) and named_run(name) == part_of_name(found.run)


def _is_taken(target: Path) -> bool:
    return target.exists() and bool(process_of(target))


def _end_name(found: FoundFile, source: str, folder: Path, copies: Copies) -> str:
    """The name of a command's run.json: each command of a launch keeps its own."""
    same = copies.ends(folder, "digest", found.digest)
    earlier = (n for n in copies.ends(folder, "source", source) if _goes_on(folder / n, found))
    name = next(iter(same), None) or next(earlier, None)
    if name is None and (folder / RUN_FILE).exists():
        name = command_file(found.run, found.digest[:16])
    return name or RUN_FILE


def _goes_on(there: Path, found: FoundFile) -> bool:
    """Whether a run.json, of the same place as one that is there, is of the same command."""
    try:
        old = read_run(there)
        new = None if found.wrong else read_run(Path(found.path))
    except WstraceError:
        return True  # what could not be read
    if old is None or new is None:
        return old is None
    begun = (old.command, old.config, old.started) == (new.command, new.config, new.started)
    return begun and not old.over


def _marked(name: str, mark: str) -> str:
    return f"{name.removesuffix(SUFFIX)[:180]}-{mark}{SUFFIX}"


def _better(new: FoundFile, old: FoundFile, done: Gathered) -> bool:
    """Whether a file takes the place of another one of its name."""
    if new.kind == "end":
        return True  # the same command's: `_end_name` gives another's a name of its own
    done.words.append(
        f"{Path(old.path).name} was there with other bytes: the longer one is kept"
    )
    return new.size > old.size
