"""From URIs to rows in the store: what is there, what is known, what has to be read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from wstrace.cli.fleet.engines import Engine
from wstrace.cli.fleet.job import Job
from wstrace.fleet.found_files import files_of
from wstrace.fleet.source import RowSource
from wstrace.fleet.store import Store
from wstrace.fleet.summary import RunSummary

Tell = Callable[[str, int, int | None], None]
"""What is done, how much of it, of how much."""


@dataclass
class Scanned:
    """How a scan went: files looked at, rows from the cache and read, what was no trace."""

    files: int = 0
    cached: int = 0
    read: int = 0
    wrong: list[str] = field(default_factory=list)


def scan(paths: Sequence[Path], store: Store, job: Job, engine: Engine) -> Scanned:
    """Put a row for every run and log below `paths` into the store."""
    done = Scanned()
    with _progress() as tell:
        for path in paths:
            before = done.files
            for _ in store.take(files_of(path, done.wrong)):
                done.files += 1
                tell("Looking", done.files, None)
            if done.files == before:
                done.wrong.append(f"{path} holds no trace and no log")
        total = sum(1 for _ in store.sources())
        for number, summary in enumerate(_rows(store, job, engine, done), 1):
            store.add(summary)
            tell("Reading", number, total)
    return done


def _rows(store: Store, job: Job, engine: Engine, done: Scanned) -> Iterator[RunSummary]:
    """What is known first, then what has to be read; neither is held in memory."""
    for source in store.sources():
        known = _known(store, job, source)
        if known is not None:
            done.cached += 1
            yield _placed(known, source, job)
    unknown = (s for s in store.sources() if _known(store, job, s) is None)
    for source, summary in engine(job, unknown):
        done.read += 1
        if summary.kind != "unread":
            store.keep(job.key(source), summary)
        yield _placed(summary, source, job)


def _known(store: Store, job: Job, source: RowSource) -> RunSummary | None:
    found = store.cached(job.key(source))
    return found if found is not None and _has_page(job, found) else None


def _has_page(job: Job, summary: RunSummary) -> bool:
    page = job.page_of(summary)
    return not page or Path(job.pages, page).is_file()


def _placed(summary: RunSummary, source: RowSource, job: Job) -> RunSummary:
    """The row with where its files lie now, which a cached one cannot know."""
    return msgspec.structs.replace(
        summary, folders=list(source.folders), page=job.page_of(summary)
    )


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on a terminal; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda what, number, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, int] = {}

        def tell(what: str, number: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=number, total=total)  # type: ignore[arg-type]

        yield tell
