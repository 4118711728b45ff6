"""Reading one process's trace file: its header, its records, those that are alike once.

A damaged file is told where that is possible: a cut last line is tolerated, a record of an
unknown kind is counted, anything else is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import msgspec

from wstrace import __version__
from wstrace.errors import WstraceError, one_line
from wstrace.file_names import is_packed
from wstrace.trace.cleaning import cleaned
from wstrace.trace.collapsing import Collapsing, Repeats, RunLines
from wstrace.trace.decoding import record_decoder
from wstrace.trace.records import FORMAT, AnyRecord, Header, Record, Request, WorkerInit
from wstrace.trace.shared_parts import UNDECODABLE, SharedParts
from wstrace.trace.totals import Totals

_BUFFER = 1 << 20  # lines are kilobytes: with the usual 8 KB most are joined from pieces
_decode = record_decoder()


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


def unreadable(path: Path, error: OSError) -> WstraceError:
    return WstraceError(
        f"Cannot read {path}: {error.strerror or error}.",
        "Check the path and its permissions, or take it out of the folder.",
    )


def read_header(path: Path) -> Header:
    """The header of a trace file; WstraceError when the file is not one of ours."""
    try:
        with path.open("rb") as file:
            first = file.readline(1 << 22)
    except OSError as error:
        raise unreadable(path, error) from error
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
    if is_packed(path.name):
        return WstraceError(
            f"{path} is compressed, and was not read.", "Unpack it, and give its folder."
        )
    return WstraceError(
        f"{path} is not a wstrace trace.",
        "Give a trace folder made by `wstrace run`; a log: wstrace triage LOG.",
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
        raise unreadable(path, error) from error
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


def first_line_ends(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.readline(1 << 22).endswith(b"\n")
    except OSError as error:
        raise unreadable(path, error) from error
