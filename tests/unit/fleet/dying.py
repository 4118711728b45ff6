"""A reader for another process: it imports little, because a process is started for it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from wstrace.cli.fleet.job import Job
from wstrace.fleet.source import RowSource
from wstrace.fleet.summary import RunSummary


def dies_of_one(job: Job, sources: Sequence[RowSource]) -> list[RunSummary]:
    """As a reader that the kernel kills at the run called `bad`."""
    for source in sources:
        if source.run == "bad":
            os._exit(9)
    return [RunSummary(kind="run", run=source.run) for source in sources]


def stays(job: Job, sources: Sequence[RowSource]) -> list[RunSummary]:
    """As a reader of a large run: it says its pid in the file that the run's name gives, and
    leaves another one only while it works."""
    told = Path(sources[0].run)
    under_way = told.with_suffix(".part")
    under_way.touch()
    try:
        told.with_suffix(".new").write_text(str(os.getpid()))
        told.with_suffix(".new").rename(told)
        time.sleep(600)
    finally:
        under_way.unlink()
    return []
