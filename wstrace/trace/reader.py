"""Reading trace folders: many append-only files, some cut short, become one `Trace`."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError, one_line
from wstrace.file_names import KEPT_RUN_FILES, SUFFIX, command_file, trace_file_kind
from wstrace.trace.collapsing import RunLines
from wstrace.trace.each_once import Kept, ReadableCopy, each_once
from wstrace.trace.gaps import gaps
from wstrace.trace.process_file import (
    ProcessTrace,
    first_line_ends,
    read_file,
    read_header,
    unreadable,
)
from wstrace.trace.records import Header
from wstrace.trace.run_file import RunFile, find_commands, run_files, together
from wstrace.trace.unread import (
    end_alone,
    holds_nothing,
    is_special,
    missing,
    no_plain_file,
    special_files,
    torn_file,
)

Progress = Callable[[int], None]
COLLAPSED_FROM: Final = 64 << 20
"""Bytes of a run's files from which equal requests are kept once: it costs a look at each."""


@dataclass
class Trace:
    """One run: its processes, run.json where there is one, and what the reader has to say.

    `commands` are the run.json of each command of the launch, `meta` what they say together.
    `doubts` are what keeps the trace from showing that its run was clean. `alive` are the pids
    of processes that are known to run: what they did so far is whole. `unread`: trace files
    that hold nothing, where no other is there. `among_others`: its folder holds, or may hold,
    other runs.
    """

    path: Path
    run: str
    processes: list[ProcessTrace]
    meta: RunFile | None = None
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    alive: frozenset[int] = frozenset()
    unread: int = 0
    among_others: bool = False
    commands: Sequence[RunFile] = ()

    def __post_init__(self) -> None:
        if self.meta is not None and not self.commands:
            self.commands = [self.meta]

    def as_typed(self, path: Path) -> str:
        """`path` as the words of a command that reads this run from it, and not another's."""
        quoted = shlex.quote(str(path))
        return f"{quoted} --run {shlex.quote(self.run)}" if self.among_others else quoted


def load_trace(
    path: Path,
    run: str | None = None,
    progress: Progress | None = None,
    *,
    whole: bool = False,
    picks: str = "--run ID",
) -> Trace:
    """Read a trace folder or a single file.

    Of a folder with several runs the newest is read, unless `run` names one (a prefix will
    do). `progress` is called with the bytes of each file read. Of a large run, requests that
    are alike are kept once, unless it is wanted `whole` (`ProcessTrace.collapsed`). Notes say
    that a run is picked with `picks`. Raises
    WstraceError (exit 2) for a path that is missing, empty, unreadable, not a trace, or of
    another format.
    """
    files = _files(path)
    commands, doubts = _run_of(path, run)
    meta = together(commands)
    if not files:
        told, there = ["no trace file in this folder"], len(special_files(path))
        named = meta.run if meta is not None else run or ""
        return Trace(
            path, named, [], meta, told[there:], doubts, unread=there, commands=commands
        )
    headers, torn = _headers(path, files)
    if not headers:
        if meta is None:
            raise holds_nothing(path, [*torn, *special_files(path)])
        there = len(torn + special_files(path))
        doubts += torn
        return Trace(path, meta.run, [], meta, [], doubts, unread=there, commands=commands)
    if meta is not None and _left_nothing(path, meta, run, [h for _, h in headers]):
        runs = ", ".join(sorted({one_line(header.run) for _, header in headers})[:4])
        note = (
            f"run {one_line(meta.run)} left no trace file; there are those of {runs}: "
            f"{picks} picks one"
        )
        return Trace(
            path, meta.run, [], meta, [note], doubts, among_others=True, commands=commands
        )
    chosen, notes = _choose_run(path, run, headers, picks)
    commands, doubts = _run_of(path, chosen)
    meta = together(commands)
    processes = []
    of_run = [(file, header) for file, header in headers if header.run == chosen]
    once = kept_once(of_run)
    wanted = [Path(file.path) for file in once.files]
    collapse = None if whole else _shared(wanted)
    with _uncollected():
        for file in wanted:
            process, told = _read(file, meta, collapse)
            processes.append(process)
            doubts += [why for why in told if why not in doubts]
            if progress is not None:
                progress(file.stat().st_size)
    doubts += _parents_gone(path, processes, {file.name for file, _ in of_run})
    doubts += once.doubts + torn
    notes += once.words
    trace = Trace(path, chosen, processes, meta, notes, doubts, commands=commands)
    trace.among_others = len(headers) > len(of_run) or _other_ends(path, chosen)
    return trace


def _other_ends(path: Path, run: str) -> bool:
    """Whether a folder has a run.json that was kept of another run."""
    own = command_file(run, "*")
    return any(not file.match(own) for file in path.glob(KEPT_RUN_FILES))


def kept_once(files: Sequence[tuple[Path, Header]]) -> Kept[ReadableCopy]:
    """Each process's file once. Raises WstraceError (exit 2) where one has gone meanwhile."""
    try:
        return each_once([ReadableCopy(str(file), header) for file, header in files])
    except OSError as error:
        raise unreadable(Path(error.filename), error) from error


def load_files(
    files: Sequence[Path], run: str, folder: Path, ends: Iterable[Path] = ()
) -> Trace:
    """One run from those of its files that can be read; what is wrong with another is a doubt.

    `folder` is where its run.json is looked for; what is wrong with that comes last. `ends`:
    those of the run that lie there under any name.
    """
    commands, of_end = find_commands(folder, run, ends)
    meta = together(commands)
    doubts: list[str] = []
    processes = []
    collapse = _shared(files)
    with _uncollected():
        for file in files:
            try:
                if is_special(file) or not first_line_ends(file):
                    doubts.append(no_plain_file(file) if is_special(file) else torn_file(file))
                    continue
                process, told = _read(file, meta, collapse)
            except WstraceError as error:
                doubts.append(one_line(error.message))
                continue
            processes.append(process)
            doubts += told
    doubts += of_end
    if meta is not None:
        doubts += [*map(one_line, meta.lost), *_shorter(folder, meta)]
    doubts = list(dict.fromkeys(doubts))
    # where it has files others are not looked for: a folder of a fleet may hold thousands, and
    # a command may name the run in any case
    others = bool(files) or bool(trace_files(folder))
    unread = 0 if processes else len(files)
    trace = Trace(folder, run, processes, meta, [], doubts, unread=unread)
    trace.among_others, trace.commands = others, commands
    return trace


def _shared(files: Sequence[Path]) -> RunLines | None:
    """What the files of a large run have in common: its ranks ask for the same."""
    sizes = 0
    for file in files:
        with suppress(OSError):  # whoever reads it says so
            sizes += file.stat().st_size
    return RunLines() if sizes >= COLLAPSED_FROM else None


def _read(
    file: Path, meta: RunFile | None, collapse: RunLines | None
) -> tuple[ProcessTrace, list[str]]:
    """A file of the run of `meta`, and what it says or shows of records that it lacks."""
    process = read_file(file, collapse=collapse)
    process.sized = meta is not None and file.name in meta.sizes
    name = one_line(file.name)
    missing = [f"{name} lacks records: {told}" for told in gaps(process)]
    return process, [*_lost(file, process.header), *missing, *_beyond(process)]


def _beyond(process: ProcessTrace) -> Iterator[str]:
    if process.beyond:
        yield (
            f"{one_line(process.path.name)} has more different requests than are kept: of "
            f"{process.beyond:,} only the largest of each site was looked at"
        )


def _parents_gone(path: Path, processes: list[ProcessTrace], names: set[str]) -> list[str]:
    """Files of a forked child's parent that are not among a folder's `names`; one that was lost
    while it was written is in the child's last word."""
    gone = {p.header.parent: p.path.name for p in processes if p.header.parent and not p.lost}
    return [
        f"{one_line(parent)} is gone: the process of {one_line(child)} was forked from its own"
        for parent, child in gone.items()
        if parent not in names and path.is_dir()
    ]


def _run_of(path: Path, run: str | None) -> tuple[list[RunFile], list[str]]:
    """`find_commands`; of a whole folder, what was lost when they ended is a doubt as well."""
    commands, doubts = find_commands(path, run)
    meta = together(commands)
    if meta is not None and path.is_dir():
        doubts += map(one_line, meta.lost)
    if meta is not None:
        doubts += _shorter(path, meta)
    return commands, doubts + (special_files(path) if path.is_dir() else [])


def sizes_of(folder: Path, run: str) -> dict[str, int]:
    """The bytes of each trace file of `run`, by name."""
    found = {}
    for file in trace_files(folder):
        with suppress(WstraceError, OSError):
            if read_header(file).run == run:
                found[file.name] = file.stat().st_size
    return found


def _shorter(path: Path, meta: RunFile) -> Iterator[str]:
    """Files that have lost bytes since the command ended; a copy may have been cut anywhere."""
    folder = path if path.is_dir() else path.parent
    for name, size in meta.sizes.items():
        file = folder / Path(name).name
        if path not in (folder, file):
            continue
        if not file.is_file():
            yield f"{one_line(file.name)} was there when the command ended, and is gone"
        elif (now := file.stat().st_size) < size:
            yield (
                f"{one_line(file.name)} had {size:,} bytes when the command ended, and has "
                f"{now:,}: what is lost may have been a refusal"
            )


def lost_tails(folder: Path, run: str) -> list[str]:
    """What the trace files of `run` say of records that they lack.

    A file without a readable header says nothing here; whoever loads the trace is told.
    """
    told = []
    for file in trace_files(folder):
        with suppress(WstraceError):
            header = read_header(file)
            told += _lost(file, header) if header.run == run else []
    return told


def _lost(file: Path, header: Header) -> list[str]:
    """What the recorder said of a lost tail; nothing is known of what came after it."""
    word = one_line(header.lost.strip())
    return [f"{file.name}: records were lost: {word}"] if word else []


def _left_nothing(path: Path, meta: RunFile, wanted: str | None, headers: list[Header]) -> bool:
    """True where the run that is asked for has a run.json and no trace file.

    Without `wanted` that is the newest: older runs of the folder must not speak for it.
    """
    if meta.run in {header.run for header in headers} or not path.is_dir():
        return False
    return wanted is not None or meta.started_ns > max(header.wall_ns for header in headers)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Records are trees: the cyclic collector would walk millions of them for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise missing(path)
    if path.is_file() and trace_file_kind(path.name) == "end":
        raise end_alone(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise WstraceError(f"{path} is no file and no folder.", "Give a trace folder.")
    try:
        return trace_files(path)
    except OSError as error:
        raise unreadable(path, error) from error


def trace_files(folder: Path) -> list[Path]:
    """The trace files of a folder, by name. Without what `is_special`: opening a pipe waits
    for ever."""
    return sorted(file for file in folder.glob(f"*{SUFFIX}") if not is_special(file))


def _headers(path: Path, files: list[Path]) -> tuple[list[tuple[Path, Header]], list[str]]:
    """Headers of the files; in a folder, a file without a whole one becomes a doubt."""
    if path.is_file():
        return [(path, read_header(path))], []
    whole = [file for file in files if first_line_ends(file)]
    torn = [torn_file(file) for file in files if file not in whole]
    return [(file, read_header(file)) for file in whole], torn


def runs_in(path: Path) -> list[str]:
    """The runs that left a record or a run.json in a folder, by name; none for a file.

    Raises WstraceError (exit 2) as `load_trace` does; a run.json that cannot be read is told
    by whoever loads the trace.
    """
    if not path.is_dir():
        return []
    runs = {header.run for _, header in _headers(path, _files(path))[0]}
    return sorted(runs.union(meta.run for meta in run_files(path)))


def _begin_with(prefix: str, runs: list[str]) -> list[str]:
    return [run for run in runs if run.startswith(prefix)]


def _choose_run(
    path: Path, wanted: str | None, headers: list[tuple[Path, Header]], picks: str
) -> tuple[str, list[str]]:
    distinct = sorted({header.run for _, header in headers})
    if wanted is not None:
        matching = [wanted] if wanted in distinct else _begin_with(wanted, distinct)
        if len(matching) != 1:
            raise WstraceError(
                f"Run {wanted!r} names {len(matching)} runs in {path}.",
                f"Runs there: {', '.join(distinct)}.",
            )
        return matching[0], []
    newest = max(headers, key=lambda pair: pair[1].wall_ns)[1].run
    if len(distinct) == 1:
        return newest, []
    return newest, [
        f"{len(distinct)} runs in this folder, the newest ({newest}) is read; {picks} picks "
        "another"
    ]
