"""A bar over counted things on a terminal's stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wstrace.gather.gathering import Tell


@contextmanager
def counting() -> Iterator[Tell]:
    """A bar on a terminal; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda what, number, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
    )

    from wstrace.report.console import plain_console, plain_description

    columns = (
        plain_description(), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=plain_console(stderr=True), transient=True) as progress:
        tasks: dict[str, int] = {}

        def tell(what: str, number: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=number, total=total)  # type: ignore[arg-type]

        yield tell
