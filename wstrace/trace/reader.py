"""Reading trace folders: many append-only files, some cut short, become one `Trace`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from wstrace import __version__
from wstrace.errors import WstraceError, one_line
from wstrace.file_names import SUFFIX
from wstrace.trace.cleaning import cleaned
from wstrace.trace.collapsing import Collapsing, Repeats, RunLines
from wstrace.trace.decoding import record_decoder
from wstrace.trace.gaps import gaps
from wstrace.trace.records import (
    FORMAT,
    AnyRecord,
    Header,
    Record,
    Request,
    WorkerInit,
)
from wstrace.trace.run_file import RunFile as RunFile
from wstrace.trace.run_file import find_run
from wstrace.trace.run_file import read_run as read_run
from wstrace.trace.shared_parts import UNDECODABLE as UNDECODABLE
from wstrace.trace.shared_parts import SharedParts
from wstrace.trace.totals import Totals
from wstrace.trace.unread import (
    holds_nothing,
    is_special,
    no_plain_file,
    special_files,
    torn_file,
)

_BUFFER = 1 << 20  # lines are kilobytes: with the usual 8 KB most are joined from pieces
_decode = record_decoder()
Progress = Callable[[int], None]
COLLAPSED_FROM: Final = 64 << 20
"""Bytes of a run's files from which equal requests are kept once: it costs a look at each."""


@dataclass
class ProcessTrace:
    """The records of one process's file, in order. `cut`: the last line was incomplete.

    `sized`: run.json has the bytes that it had when its command ended. (Whether it has them
    still is a doubt of the trace.) `collapsed`: of requests that differ in nothing but time and
    step the first stands for all; `whole` has each.
    """

    path: Path
    header: Header
    records: list[Record] = field(default_factory=list)
    cut: bool = False
    unknown: int = 0
    sized: bool = False
    collapsed: bool = False
    lines: int = 0
    beyond: int = 0
    repeats: dict[int, Repeats] = field(default_factory=dict, repr=False)

    @cached_property
    def totals(self) -> Totals:
        """What is counted over all its records."""
        return Totals(self.records)

    def whole(self) -> ProcessTrace:
        """The process with each request on its own: where they are collapsed its file is read
        again, as far as it was. Raises WstraceError (exit 2) where it is gone."""
        if not self.collapsed:
            return self
        process = read_file(self.path, most_lines=self.lines)
        process.sized = self.sized
        return process

    @property
    def lost(self) -> str:
        """The recorder's last word, of records that are missing; empty where none are."""
        return one_line(self.header.lost.strip())

    @cached_property
    def events(self) -> list[Record]:
        """The records that are no requests, in order: few, where a file is large."""
        return [record for record in self.records if type(record) is not Request]

    @cached_property
    def last_ns(self) -> int:
        """The newest time of a record (the header's, without one), in its process's clock."""
        return self.totals.newest if self.totals.records else self.header.ns

    @property
    def worker(self) -> WorkerInit | None:
        """The worker record, if this process has a worker."""
        return next((r for r in self.events if isinstance(r, WorkerInit)), None)


@dataclass
class Trace:
    """One run: its processes, run.json where there is one, and what the reader has to say.

    `doubts` are what keeps the trace from showing that its run was clean. `alive` are the pids
    of processes that are known to run: what they did so far is whole. `unread`: trace files
    that hold nothing, where no other is there.
    """

    path: Path
    run: str
    processes: list[ProcessTrace]
    meta: RunFile | None = None
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    alive: frozenset[int] = frozenset()
    unread: int = 0


def load_trace(
    path: Path, run: str | None = None, progress: Progress | None = None, *, whole: bool = False
) -> Trace:
    """Read a trace folder or a single file.

    Of a folder with several runs the newest is read, unless `run` names one (a prefix will
    do). `progress` is called with the bytes of each file read. Of a large run, requests that
    are alike are kept once, unless it is wanted `whole` (`ProcessTrace.collapsed`). Raises
    WstraceError (exit 2) for a path that is missing, empty, unreadable, not a trace, or of
    another format.
    """
    files = _files(path)
    meta, doubts = _run_of(path, run)
    if not files:
        told, there = ["no trace file in this folder"], len(special_files(path))
        return Trace(path, run or "", [], meta, told[there:], doubts, unread=there)
    headers, torn = _headers(path, files)
    if not headers:
        if meta is None:
            raise holds_nothing(path, [*torn, *special_files(path)])
        there = len(torn + special_files(path))
        return Trace(path, meta.run, [], meta, [], doubts + torn, unread=there)
    if meta is not None and _left_nothing(path, meta, run, [h for _, h in headers]):
        return Trace(path, meta.run, [], meta, [f"run {meta.run} left no trace file"], doubts)
    chosen, notes = _choose_run(path, [h.run for _, h in headers], run, headers)
    meta, doubts = _run_of(path, chosen)
    processes = []
    wanted = [file for file, header in headers if header.run == chosen]
    collapse = None if whole else _shared(wanted)
    with _uncollected():
        for file in wanted:
            process, told = _read(file, meta, collapse)
            processes.append(process)
            doubts += [why for why in told if why not in doubts]
            if progress is not None:
                progress(file.stat().st_size)
    doubts += _parents_gone(path, processes)
    return Trace(path, chosen, processes, meta, notes, doubts + torn)


def load_files(files: Sequence[Path], run: str, folder: Path) -> Trace:
    """One run from those of its files that can be read; what is wrong with another is a doubt.

    `folder` is where its run.json is looked for; what is wrong with that comes last.
    """
    meta, of_end = find_run(folder, run)
    doubts: list[str] = []
    processes = []
    collapse = _shared(files)
    with _uncollected():
        for file in files:
            try:
                if is_special(file) or not _first_line_ends(file):
                    doubts.append(no_plain_file(file) if is_special(file) else torn_file(file))
                    continue
                process, told = _read(file, meta, collapse)
            except WstraceError as error:
                doubts.append(one_line(error.message))
                continue
            processes.append(process)
            doubts += told
    doubts += of_end
    doubts += map(one_line, meta.lost) if meta is not None else ()
    return Trace(folder, run, processes, meta, [], list(dict.fromkeys(doubts)))


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


def _parents_gone(path: Path, processes: list[ProcessTrace]) -> list[str]:
    """Files of a forked child's parent that a folder lacks; one that was lost while it was
    written is in the child's last word."""
    names = {process.path.name for process in processes}
    gone = {p.header.parent: p.path.name for p in processes if p.header.parent and not p.lost}
    return [
        f"{one_line(parent)} is gone: the process of {one_line(child)} was forked from its own"
        for parent, child in gone.items()
        if parent not in names and path.is_dir()
    ]


def _run_of(path: Path, run: str | None) -> tuple[RunFile | None, list[str]]:
    """`find_run`; of a whole folder, what was lost when the run ended is a doubt as well."""
    meta, doubts = find_run(path, run)
    if meta is not None and path.is_dir():
        doubts += map(one_line, meta.lost)
    if meta is not None:
        doubts += _shorter(path, meta)
    return meta, doubts + (special_files(path) if path.is_dir() else [])


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
        raise WstraceError(
            f"No such trace: {path}.", "Give the folder that `wstrace run` named."
        )
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise WstraceError(f"{path} is no file and no folder.", "Give a trace folder.")
    try:
        return trace_files(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def trace_files(folder: Path) -> list[Path]:
    """The trace files of a folder, by name. Without what `is_special`: opening a pipe waits
    for ever."""
    return sorted(file for file in folder.glob(f"*{SUFFIX}") if not is_special(file))


def _headers(path: Path, files: list[Path]) -> tuple[list[tuple[Path, Header]], list[str]]:
    """Headers of the files; in a folder, a file without a whole one becomes a doubt."""
    if path.is_file():
        return [(path, read_header(path))], []
    whole = [file for file in files if _first_line_ends(file)]
    torn = [torn_file(file) for file in files if file not in whole]
    return [(file, read_header(file)) for file in whole], torn


def _first_line_ends(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.readline(1 << 22).endswith(b"\n")
    except OSError as error:
        raise _unreadable(path, error) from error


def runs_in(path: Path) -> list[str]:
    """The runs that left a record in a folder, by name; none for a file.

    Raises WstraceError (exit 2) as `load_trace` does.
    """
    if not path.is_dir():
        return []
    return sorted({header.run for _, header in _headers(path, _files(path))[0]})


def _choose_run(
    path: Path, runs: list[str], wanted: str | None, headers: list[tuple[Path, Header]]
) -> tuple[str, list[str]]:
    distinct = sorted(set(runs))
    if wanted is not None:
        matching = [r for r in distinct if r.startswith(wanted)]
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
        f"{len(distinct)} runs in this folder, read the newest ({newest}); --run ID"
    ]


def _unreadable(path: Path, error: OSError) -> WstraceError:
    return WstraceError(
        f"Cannot read {path}: {error.strerror or error}.", "Check the path and its permissions."
    )


def read_header(path: Path) -> Header:
    """The header of a trace file; WstraceError when the file is not one of ours."""
    try:
        with path.open("rb") as file:
            first = file.readline(1 << 22)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not first:
        raise WstraceError(f"{path} is empty.", "Give a trace folder made by `wstrace run`.")
    try:
        header = _decode(first)
    except UNDECODABLE as error:
        raise _foreign(path) from error
    if not isinstance(header, Header):
        raise _foreign(path)
    cleaned(header)
    if header.format != FORMAT:
        raise WstraceError(
            f"{path} has trace format {header.format}, this wstrace reads {FORMAT}.",
            _other_wstrace(header),
        )
    return header


def _other_wstrace(header: Header) -> str:
    """What reads a format that this wstrace does not; two builds may bear one version."""
    if header.wstrace == __version__:
        return f"It names wstrace {__version__}, as this one does: use the build that wrote it."
    newer = ", or a newer one" if header.format > FORMAT else ""
    return f"Use the wstrace that wrote it ({header.wstrace}){newer}."


def _foreign(path: Path) -> WstraceError:
    return WstraceError(
        f"{path} is not a wstrace trace.", "Give a trace folder made by `wstrace run`."
    )


def read_file(
    path: Path, *, collapse: RunLines | None = None, most_lines: int | None = None
) -> ProcessTrace:
    """All records of one file, or those of its first lines behind the header's.

    `collapse`: requests that are alike are kept once; it has what the run's files share.
    A cut last line is tolerated and said (`cut`); a broken line in the middle is an error;
    records of a kind that this version does not know are counted, not lost silently.
    """
    process = ProcessTrace(path, read_header(path), collapsed=collapse is not None)
    try:
        with path.open("rb", buffering=_BUFFER) as file:
            file.readline()
            lines = islice(file, most_lines)
            if collapse is None:
                _keep(process, lines)
            else:
                _collapse(process, lines, collapse)
    except OSError as error:
        raise _unreadable(path, error) from error
    if any(type(record) is Header for record in process.events):
        raise WstraceError(
            f"{path} has another file's header in it.",
            "The file was changed after it was written; use the original.",
        )
    return process


def _keep(process: ProcessTrace, lines: Iterable[bytes]) -> None:
    """Each record of the lines."""
    record, append = SharedParts().record, process.records.append
    for number, line in enumerate(lines, 2):
        try:
            append(record(line))
        except UNDECODABLE as error:
            _odd(process, number, line, error)


def _collapse(process: ProcessTrace, lines: Iterable[bytes], shared: RunLines) -> None:
    """The records of the lines, those that are alike once."""
    made = Collapsing(shared, partial(_odd, process))
    made.read(lines)
    process.records, process.repeats = made.records, made.repeats
    process.totals, process.beyond, process.lines = made.totals, made.beyond, made.lines


def _odd(process: ProcessTrace, number: int, line: bytes, error: Exception) -> None:
    """A line that is no record that this version knows."""
    if line.isspace():  # an editor may have left blank lines
        return
    if not line.endswith(b"\n"):
        process.cut = True
    elif _is_unknown_kind(line):
        process.unknown += 1
    else:
        raise WstraceError(
            f"{process.path}, line {number}: not a trace record ({error}).",
            "The file was changed after it was written; use the original.",
        ) from error


def _is_unknown_kind(line: bytes) -> bool:
    try:
        found = msgspec.json.decode(line)
    except UNDECODABLE:
        return False
    known = {kind.__struct_config__.tag for kind in AnyRecord.__args__}
    return (
        isinstance(found, dict) and isinstance(found.get("t"), str) and found["t"] not in known
    )
