"""`wstrace gather SOURCE...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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


def command(
    output: OUT, sources: SOURCES = None, run: RUN = None, check: CHECK = False
) -> None:
    """Bring the traces of many hosts into one folder a run.

    What is there already is not copied again, and bytes are compared after copying. ray:/path
    is that folder of every node of a Ray cluster. Exits 1 where a file could not be copied, or
    (--check) is not what was copied.
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
    _tell(done, output)
    return bool(done.failed)


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
    if not done.copied + done.known and not done.failed:
        raise WstraceError("No file of a trace was found there.", "Give folders with traces.")
    for run, count in done.runs.items():
        print(f"{clean_text(run)}: {plural(count, 'file')}")
    copied = f"{plural(done.copied, 'file')} copied ({human(done.bytes)})"
    print(f"{copied}, {done.known:,} there before, in {folder}")
