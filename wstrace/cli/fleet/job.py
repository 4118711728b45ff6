"""One source read: its row, and its report where one is wanted. Runs in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

import wstrace
from wstrace.errors import WstraceError
from wstrace.file_names import part_of_name
from wstrace.files import naming, write_whole
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.fleet.source import RowSource
from wstrace.fleet.summary import FORMAT, RunSummary, open_source, summarise, unread
from wstrace.trace.cleaning import clean_text

Reports = Literal["all", "findings", "none"]


class Job(msgspec.Struct, frozen=True):
    """What is wanted of each source. `pages`: the folder for reports, empty for none."""

    allow_unlocked: bool = False
    reports: Reports = "all"
    pages: str = ""

    def key(self, source: RowSource) -> str:
        """The cache's key: equal keys give equal rows."""
        return f"{source.digest} {code_digest()} {FORMAT} {self.allow_unlocked}"

    def page_of(self, summary: RunSummary) -> str:
        """The name of a row's report; empty where it has none."""
        wanted = self.reports == "all" or summary.verdict == "findings"
        if not self.pages or self.reports == "none" or summary.kind == "unread" or not wanted:
            return ""
        return f"{part_of_name(summary.run, 80)}-{summary.digest[:12]}.html"


@cache
def code_digest() -> str:
    """Sixteen hex digits over the state of this package's files: other code, other rows."""
    root = Path(wstrace.__file__).parent
    made = hashlib.blake2b(digest_size=8)
    for file in sorted((*root.rglob("*.py"), *root.rglob("*.toml"))):
        found = file.stat()
        made.update(f"{file.relative_to(root)} {found.st_size} {found.st_mtime_ns}\n".encode())
    return made.hexdigest()


def do(job: Job, sources: Sequence[RowSource]) -> list[RunSummary]:
    """The rows of some sources; one that cannot be read has a row that says why."""
    return [_one(job, source) for source in sources]


def _one(job: Job, source: RowSource) -> RunSummary:
    from wstrace.report.verdict import sentence

    try:
        run = open_source(source, allow_unlocked=job.allow_unlocked)
        summary = summarise(source, run, sentence(run))
        page = job.page_of(summary)
        html = _rendered(run) if page else b""
    except WstraceError as error:
        return unread(source, error.message, lasting=True)
    except (Exception, RecursionError) as error:  # one bad run never ends a fleet
        told = clean_text(f"{type(error).__name__}: {error}")
        return unread(source, f"internal error: {told}")
    try:
        if page:
            with naming(Path(job.pages, page)):
                write_whole(html, Path(job.pages, page))
    except WstraceError as error:
        return unread(source, error.message, unwritten=error.message)
    return summary


def _rendered(run: AnalysedRun) -> bytes:
    from wstrace.report.html import render

    return render([run]).encode(errors="backslashreplace")
