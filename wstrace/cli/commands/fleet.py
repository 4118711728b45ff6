"""`wstrace fleet URI...`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from wstrace.cli import outlet
from wstrace.cli.sigterm import heed_sigterm
from wstrace.errors import FOUND, WstraceError, one_line
from wstrace.units import plural

if TYPE_CHECKING:
    from wstrace.fleet.fleet import Fleet

URIS = Annotated[
    list[str],
    typer.Argument(
        metavar="URI...", help="Folders with traces and logs, s3://..., or single files."
    ),
]
FORMAT = Annotated[
    str | None, typer.Option("--format", help="text, json, parquet or html (a site).")
]
OUT = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="FILE.json, .parquet, .txt, or a folder: the site."),
]
ENGINE = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="local: processes here. ray: tasks of an existing cluster."),
]
JOBS = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes (default: one a core).")
]
REPORTS = Annotated[
    Literal["all", "findings", "none"],
    typer.Option("--reports", help="Which runs get a report in the site."),
]
CACHE = Annotated[
    Path | None,
    typer.Option("--cache", help="Folder for what was read (default: in the user's cache)."),
]
NO_CACHE = Annotated[bool, typer.Option("--no-cache", help="Keep nothing between two calls.")]
UNLOCKED = Annotated[
    bool, typer.Option("--allow-unlocked", help="A run that never locks is not inconclusive.")
]

FORMATS: Final = ("text", "json", "parquet", "html")


def command(
    uris: URIS,
    fmt: FORMAT = None,
    output: OUT = None,
    engine: ENGINE = "local",
    jobs: JOBS = None,
    reports: REPORTS = "all",
    cache: CACHE = None,
    no_cache: NO_CACHE = False,
    allow_unlocked: UNLOCKED = False,
) -> None:
    """Thousands of traces and logs: what escapes, what got worse.

    Exits 0 when it has read them, 1 where a URI or a folder of it could not be read, 2 where
    nothing could; what is wrong with a run is told, and ends nothing. `gate` judges.
    Example: wstrace fleet /mnt/traces -o site
    """
    from wstrace.cli.fleet.engines import engine as engine_of
    from wstrace.cli.fleet.job import Job
    from wstrace.cli.fleet.reading_all import scan
    from wstrace.files import user_cache
    from wstrace.fleet.fleet import Fleet
    from wstrace.fleet.store import NAME, Store

    name = _format(fmt, output)
    at = None if no_cache else (cache or user_cache()) / NAME
    pages = _pages(name, output, reports)
    chosen = engine_of(engine, jobs)
    heed_sigterm()
    with Store(at) as store, _copies(at, uris) as copies:
        job = Job(allow_unlocked, reports, pages)
        paths, missing = _brought(uris, copies)
        done = scan(paths, store, job, chosen)
        not_copied = list(missing)
        missing += done.failed
        fleet = Fleet(store, done.files, done.read, done.cached, missing + done.empty)
        if not done.read + done.cached:
            raise _nothing_read(uris, missing)
        if fleet.counts["unread"] == done.read + done.cached:
            raise _none_readable(uris, fleet)
        for told in not_copied:
            outlet.say(f"wstrace: {told}")
        _write(fleet, name, output)
    if missing:
        sys.exit(FOUND)


def _nothing_read(uris: list[str], missing: list[str]) -> WstraceError:
    from wstrace.trace.unread import first_told

    what = f"No trace and no log below {', '.join(uris)}"
    if not missing:
        return WstraceError(
            f"{what}.", "Give folders that `wstrace run` made, or a folder above them."
        )
    return WstraceError(
        f"{what} could be read: {first_told(missing)}.",
        "Check paths, addresses and permissions.",
    )


def _none_readable(uris: list[str], fleet: Fleet) -> WstraceError:
    """The error for a fleet of files of which none could be read."""
    from wstrace.trace.unread import first_told

    told = [*fleet.wrong, *(f"{row.run}: {row.sentence}" for row in fleet.rows())]
    return WstraceError(
        f"Nothing below {', '.join(uris)} can be read: {first_told([*map(one_line, told)])}.",
        "Give folders that `wstrace run` made, or restore the files from where they were made.",
    )


def _format(fmt: str | None, output: Path | None) -> str:
    """The format: what was asked for, else by the extension of `output`, else text."""
    from wstrace.report.formats import by_extension

    known: str | None = "text"
    if output is not None:
        folder = output.is_dir() or not (output.suffix or str(output) == "-")
        known = "html" if folder else by_extension(output, ("text", "json", "parquet"))
    name = fmt or known
    if name not in FORMATS:
        what = f"No such format: {fmt}" if fmt else f"Cannot tell the format from {output}"
        raise WstraceError(f"{what}.", f"Add --format {'|'.join(FORMATS)}.")
    if name in ("parquet", "html") and (output is None or str(output) == "-"):
        raise WstraceError(
            f"{name} does not go to standard output.",
            "Give a file: -o fleet.parquet."
            if name == "parquet"
            else "Give a folder: -o site.",
        )
    return name


@contextmanager
def _copies(cache: Path | None, uris: list[str]) -> Iterator[Path]:
    """Where what is not here is gathered: beside the cache, else in a folder that goes."""
    from wstrace.cli.fleet.temporary import folder_of_its_own
    from wstrace.gather.places import is_far

    if cache is None and any(map(is_far, uris)):
        with folder_of_its_own() as folder:
            yield folder
    else:
        yield (cache or Path()).parent


def _brought(uris: list[str], copies: Path) -> tuple[list[Path], list[str]]:
    """The paths of the URIs, and what could not be brought: what is not here is gathered first,
    below `copies`."""
    from wstrace.cli.counting import counting
    from wstrace.gather.copies import folder_name
    from wstrace.gather.gathering import gather
    from wstrace.gather.places import is_far, place_named

    paths, missing = [], []
    for uri in uris:
        path = copies / "gathered" / folder_name(uri) if is_far(uri) else Path(uri)
        if is_far(uri):
            with counting() as tell:
                done = gather([(uri, place_named(uri))], path, None, tell, only_listed=True)
            if len(uris) == 1 and done.refused and not done.runs:
                raise done.refused[0]
            missing += [f"not copied: {wrong}" for wrong in done.failed]
            if done.failed and not done.runs:
                continue
        paths.append(path)
    return paths, missing


def _pages(name: str, output: Path | None, reports: str) -> str:
    """The folder of the runs' reports, made; empty where none are wanted."""
    from wstrace.files import make_folder
    from wstrace.report.html.fleet_site import RUNS, refuse_foreign

    if name != "html" or output is None:
        return ""
    refuse_foreign(output)
    if reports == "none":
        return ""
    folder = output.absolute() / RUNS
    make_folder(folder)
    return str(folder)


def _write(fleet: Fleet, name: str, output: Path | None) -> None:
    if name == "html":
        from wstrace.report.html.fleet_site import write_site

        assert output is not None
        index, *models = write_site(fleet, output)
        outlet.say(f"Wrote {index} and {len(models)} pages of models.")
    elif name == "parquet":
        from wstrace.report.export.fleet_table import write_parquet

        assert output is not None
        write_parquet(fleet, output)
        outlet.say(f"Wrote {output}.")
        if notes := sum(1 for _ in fleet.notes()):
            told = f"{plural(notes, 'note')} on what could not be read or is unusual"
            outlet.say(f"{told}: in its metadata (wstrace.notes), or --format json.")
    elif name == "json":
        from wstrace.report.fleet_json import json_pieces

        outlet.write(json_pieces(fleet), output)
    else:
        _text(fleet, output)


def _text(fleet: Fleet, output: Path | None) -> None:
    from wstrace.report.fleet_text import print_fleet, render_fleet

    if output is None and sys.stdout.isatty():
        from wstrace.report.console import plain_console

        print_fleet(fleet, plain_console())
        return
    outlet.write(render_fleet(fleet), output)
