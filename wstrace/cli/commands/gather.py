"""`wstrace gather SOURCE...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wstrace.errors import FOUND, WstraceError

if TYPE_CHECKING:
    from wstrace.gather.gathering import Gathered

SOURCES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="A folder, s3://bucket/traces or another fsspec address, or ray:/path.",
    ),
]
OUT = Annotated[Path, typer.Option("-o", "--output", help="Folder; each run gets one in it.")]
RUN = Annotated[str | None, typer.Option("--run", help="Only this run (a prefix will do).")]
CHECK = Annotated[
    bool, typer.Option("--check", help="Copy nothing: hold what is there against its digests.")
]

_MOST_RUNS: Final = 10
"""Ids that an error names."""


def command(
    output: OUT, sources: SOURCES = None, run: RUN = None, check: CHECK = False
) -> None:
    """Bring the traces of many hosts into one folder a run.

    What is there already is not copied again, and bytes are compared after copying. ray:/path
    is that folder of every node of a Ray cluster. Exits 1 where a file or a source could not be
    copied, or (--check) is not what was copied; 2 where no source could be read.
    Example: wstrace gather /mnt/node*/traces s3://bucket/traces -o gathered
    """
    from wstrace.cli import outlet

    if bool(sources) == check:
        raise WstraceError(
            "--check copies nothing and takes no source." if check else "No source is given.",
            "Give what to gather, or --check to hold what is there against its digests.",
        )
    try:
        failed = _check(output) if check else _gather(sources or [], output, run)
    except OSError as error:
        raise outlet.failure(error) from error
    if failed:
        sys.exit(FOUND)


def _gather(sources: list[str], output: Path, run: str | None) -> bool:
    from wstrace.cli import outlet
    from wstrace.cli.counting import counting
    from wstrace.gather.gathering import gather
    from wstrace.gather.places import place_named

    places = [(source, place_named(source)) for source in sources]
    with counting() as tell:
        done = gather(places, output, run, tell, lambda word: outlet.say(f"wstrace: {word}"))
    if not done.copied + done.known:
        _refuse_nothing(done, run)
    _tell(done, output)
    return bool(done.failed)


def _refuse_nothing(done: Gathered, run: str | None) -> None:
    """An error for a call that found nothing; of what it found and could not copy `_tell` has
    a line each."""
    from wstrace.units import plural

    if not done.failed and not done.listed and done.passed_over:
        raise WstraceError(
            "Only what was gathered before is there, and is not gathered from itself.",
            "Give the folders that it came from, or --check to hold it against its digests.",
        )
    if not done.failed and not done.listed:
        raise WstraceError("No file of a trace was found there.", "Give folders with traces.")
    if not done.failed:
        some = sorted(name for name in done.others if name)[:_MOST_RUNS]
        more = ", ..." if len(done.others) > _MOST_RUNS else ""
        raise WstraceError(
            f"Of {plural(done.listed, 'file')} there none is of a run {run}.",
            f"Runs there: {', '.join(some)}{more}." if some else "No file there names a run.",
        )
    if not done.listed and done.silent == len(done.failed):
        raise _nothing_read(done)


def _nothing_read(done: Gathered) -> WstraceError:
    from wstrace.cli import outlet

    if len(done.failed) == 1 and done.refused:
        return done.refused[0]
    for wrong in done.failed[1:]:
        outlet.say(f"wstrace: not copied: {wrong}")
    return WstraceError(
        f"Nothing was gathered: {done.failed[0]}.",
        "Check the path or address, and its permissions.",
    )


def _check(folder: Path) -> bool:
    from wstrace.cli import outlet
    from wstrace.cli.counting import counting
    from wstrace.gather.checking import check
    from wstrace.trace.cleaning import clean_text
    from wstrace.units import plural

    with counting() as tell:
        done = check(folder, tell)
    for wrong in done.wrong:
        outlet.say(f"wstrace: {clean_text(wrong)}")
    what = f"{plural(done.sound, 'file')} of {plural(done.runs, 'folder')}"
    print(f"{what} as they were copied, {len(done.wrong):,} not, in {folder}")
    return bool(done.wrong)


def _tell(done: Gathered, folder: Path) -> None:
    from wstrace.cli import outlet
    from wstrace.trace.cleaning import clean_text
    from wstrace.units import human, plural

    for wrong in done.failed:
        outlet.say(f"wstrace: not copied: {clean_text(wrong)}")
    for told in done.words:
        outlet.say(f"wstrace: {clean_text(told)}")
    for run, count in done.runs.items():
        print(f"{clean_text(run)}: {plural(count, 'file')}")
    copied = f"{plural(done.copied, 'file')} copied ({human(done.bytes)})"
    print(f"{copied}, {done.known:,} there before, in {folder}")
