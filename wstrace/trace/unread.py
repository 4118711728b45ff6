"""Files with a trace file's name that hold no record, and why; folders that are no trace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError, one_line
from wstrace.file_names import SUFFIX, is_packed, trace_file_kind
from wstrace.trace.run_file import run_files
from wstrace.units import plural

TOLD: Final = 3
"""Files of which an error says why; a folder of 512 ranks has more."""


def is_special(file: Path) -> bool:
    """A pipe or a device; a folder and a link that leads to nothing, or to what may not be
    looked at, are errors for whoever opens them."""
    return os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file)


def special_files(folder: Path) -> list[str]:
    """A sentence for each that has a trace file's name and is none."""
    found = sorted(file for file in folder.glob(f"*{SUFFIX}") if is_special(file))
    return [no_plain_file(file) for file in found] + _packed_files(folder)


def _packed_files(folder: Path) -> list[str]:
    """Trace files that someone compressed, and of which the records do not lie beside them."""
    packed = sorted(f for f in folder.glob(f"*{SUFFIX}.*") if is_packed(f.name))
    return [
        f"{one_line(f.name)} is compressed: what it holds was not read"
        for f in packed
        if not os.path.exists(f.with_suffix(""))
    ]


def missing(path: Path) -> WstraceError:
    """The error for a path with nothing there; `-` is standard input for a log alone."""
    hint = "Give the folder that `wstrace run` named."
    if str(path) == "-":
        hint = "A log on standard input is for `wstrace triage -`."
    return WstraceError(f"No such trace: {path}.", hint)


def end_alone(path: Path) -> WstraceError:
    """The error for a run.json in the place of its trace, or of a log."""
    return WstraceError(
        f"{path} says how a run ended: it is no trace and no log.",
        f"Give its folder: {one_line(str(path.parent))}",
    )


def no_plain_file(file: Path) -> str:
    """Why a pipe or a device was not read."""
    return f"{one_line(file.name)} is no plain file: what it should hold was not read"


def torn_file(file: Path) -> str:
    """Why a file without a whole line holds nothing."""
    return (
        f"{one_line(file.name)} has no whole record (its process was killed, or the disk was "
        "full): what it did is in no record"
    )


def first_told(why: Sequence[str]) -> str:
    """Sentences as one reason: the first `TOLD`, and how many more there are."""
    told = "; ".join(sentence.removesuffix(".") for sentence in why[:TOLD])
    return told if len(why) <= TOLD else f"{told}; and {len(why) - TOLD:,} more"


def holds_nothing(folder: Path, why: Sequence[str]) -> WstraceError:
    """The error for a folder of such files alone; `why` has a sentence for each."""
    return WstraceError(
        f"Of {plural(len(why), 'trace file')} in {folder} none can be read: {first_told(why)}.",
        "Give a trace folder made by `wstrace run`.",
    )


def is_other_folder(folder: Path) -> bool:
    """Whether it holds something, and no file of a trace: a command that the recorder never
    attached to leaves its run.json, or nothing. Hidden names count for nothing."""
    with suppress(OSError):  # whoever reads it says so
        names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
        return bool(names) and not any(map(trace_file_kind, names))
    return False


def no_trace(folder: Path, why: str = "") -> WstraceError:
    """The error for a folder in which no run left anything; it names the traces below."""
    told = f": {why}" if why else ""
    return WstraceError(
        f"{folder} holds no trace{told}.",
        _named(traces_below(folder)) or "Give a folder made by `wstrace run`.",
    )


def _named(traces: Sequence[Path]) -> str:
    if not traces:
        return ""
    first = ", ".join(one_line(str(trace)) for trace in traces[:TOLD])
    more = f" and {len(traces) - TOLD:,} more" if len(traces) > TOLD else ""
    return f"Traces lie in {first}{more}: name them."


def traces_below(folder: Path) -> list[Path]:
    """The trace folders right below it, by name."""
    return [below for below in sorted(folder.glob("*")) if _holds_trace(below)]


def _holds_trace(folder: Path) -> bool:
    with suppress(OSError):  # what cannot be listed is not named
        if folder.is_dir():
            return any(folder.glob(f"*{SUFFIX}")) or bool(run_files(folder))
    return False
