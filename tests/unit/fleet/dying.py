"""A reader for another process: it imports little, because a process is started for it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wstrace.cli.fleet.job import Job
from wstrace.fleet.source import RowSource
from wstrace.fleet.summary import RunSummary


def dies_of_one(job: Job, sources: Sequence[RowSource]) -> list[RunSummary]:
    """As a reader that the kernel kills at the run called `bad`."""
    for source in sources:
        if source.run == "bad":
            os._exit(9)
    return [RunSummary(kind="run", run=source.run) for source in sources]
