"""`wstrace gather SOURCE...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstrace.gather.gathering import Gathered

SOURCES = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="A folder, s3://bucket/traces or another fsspec address, or ray:/path.",
    ),
]
OUT = Annotated[Path, typer.Option("-o", "--output", help="Folder; each run gets one in it.")]
RUN = Annotated[str | None, typer.Option("--run", help="Only this run (a prefix will do).")]

CLEAR: Final = "\r\x1b[K"
"""Takes away what stands on the terminal's line."""


def command(sources: SOURCES, output: OUT, run: RUN = None) -> None:
    """Bring the traces of many hosts into one folder a run.

    What is there already is not copied again, and bytes are compared after copying. ray:/path
    is that folder of every node of a Ray cluster. Exits 1 where a file could not be copied.
    Example: wstrace gather /mnt/node*/traces s3://bucket/traces -o gathered
    """
    from wstrace.cli import outlet
    from wstrace.errors import FOUND
    from wstrace.gather.gathering import gather
    from wstrace.gather.places import place_of

    places = [(source, place_of(source)) for source in sources]
    try:
        done = gather(places, output, run, _told())
    except OSError as error:
        raise outlet.failure(error) from error
    _say(done, output)
    if done.failed:
        sys.exit(FOUND)


def _told() -> Callable[[str], None]:
    """A line that follows the files on a terminal; nothing where nobody looks."""
    from wstrace.errors import one_line

    if not sys.stderr.isatty():
        return lambda name: None
    return lambda name: _show(one_line(name)[:70])


def _show(text: str) -> None:
    print(f"{CLEAR}{text}", end="", file=sys.stderr, flush=True)


def _say(done: Gathered, folder: Path) -> None:
    from wstrace.cli import outlet
    from wstrace.errors import WstraceError
    from wstrace.trace.cleaning import clean_text
    from wstrace.units import human, plural

    if sys.stderr.isatty():
        _show("")
    for wrong in done.failed:
        outlet.say(f"wstrace: not copied: {clean_text(wrong)}")
    for told in done.words:
        outlet.say(f"wstrace: {clean_text(told)}")
    if not done.copied + done.known and not done.failed:
        raise WstraceError("No file of a trace was found there.", "Give folders with traces.")
    for run, count in done.runs.items():
        print(f"{clean_text(run)}: {plural(count, 'file')}")
    copied = f"{plural(done.copied, 'file')} copied ({human(done.bytes)})"
    print(f"{copied}, {done.known:,} there before, in {folder}")
