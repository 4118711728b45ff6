"""From URIs to rows in the store: what is there, what is known, what has to be read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from wstrace.cli.counting import counting
from wstrace.cli.fleet.engines import Engine
from wstrace.cli.fleet.job import Job
from wstrace.errors import WstraceError
from wstrace.fleet.found_files import files_of
from wstrace.fleet.source import RowSource
from wstrace.fleet.store import Store
from wstrace.fleet.summary import RunSummary


@dataclass
class Scanned:
    """How a scan went: files looked at, rows from the cache and read.

    `failed`: paths and folders that could not be looked at. `empty`: paths that hold nothing.
    """

    files: int = 0
    cached: int = 0
    read: int = 0
    failed: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Both, as a fleet's notes have them."""
        return self.failed + self.empty


def scan(paths: Sequence[Path], store: Store, job: Job, engine: Engine) -> Scanned:
    """Put a row for every run and log below `paths` into the store."""
    done = Scanned()
    left = 0
    with counting() as tell:
        for path in paths:
            before = done.files + len(done.failed)
            try:
                for _ in store.take(files_of(path, done.failed)):
                    done.files += 1
                    tell("Looking", done.files, None)
            except WstraceError as error:  # no such path: the others are read
                done.failed.append(error.message)
            if done.files + len(done.failed) == before:
                done.empty.append(f"{path} holds no trace and no log")
        for source in store.sources():
            known = _known(store, job, source)
            if known is None:
                store.wait(source)
                left += 1
            else:
                done.cached += 1
                store.add(_placed(known, source, job))
                tell("Known", done.cached, None)
        with closing(_read(store, job, engine)) as rows:
            for summary in rows:
                done.read += 1
                store.add(summary)
                tell("Reading", done.read, left)
    return done


def _read(store: Store, job: Job, engine: Engine) -> Generator[RunSummary]:
    """What has to be read, as it is done; a row that other bytes would change is kept."""
    with closing(engine(job, store.waiting())) as rows:
        for source, summary in rows:
            if summary.unwritten:
                raise WstraceError(
                    summary.unwritten,
                    "Give a folder that can be written, with room on its disk.",
                )
            if summary.lasting and source.whole:
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
    return msgspec.structs.replace(summary, folders=source.places, page=job.page_of(summary))
