"""The diff as rows: warm-up against serving of one run, or run A against run B."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from wstrace.report.finding_text import slot_text
from wstrace.runs.compare import compare
from wstrace.runs.lock_epochs import Outcome
from wstrace.runs.run import Run, RunSite
from wstrace.units import human


@dataclass(frozen=True)
class Row:
    """One site and slot; `before` and `after` are the largest requests in bytes."""

    site: str
    slot: str
    before: int
    after: int
    change: str
    arena: int | None


CHANGES: Final[dict[Outcome, str]] = {
    "escaped": "escaped",
    "outgrew": "grew the arena, which nothing locked",
}


def phase_rows(run: Run) -> list[Row]:
    """Warm-up (before) against the time from the lock on (after)."""
    return [
        Row(
            str(site.key),
            slot_text(site.slot),
            site.warmup_bytes,
            site.serving_bytes,
            _verdict(site),
            site.arena_bytes,
        )
        for site in run.sites
    ]


def _verdict(site: RunSite) -> str:
    if site.outcome == "latent":
        return "masked" if site.warmup_bytes else "masked, never asked in warm-up"
    return CHANGES.get(site.outcome, "warmed")


def run_rows(a: Run, b: Run) -> list[Row]:
    """Run A (before) against run B (after)."""
    return [
        Row(
            str(change.key),
            slot_text(change.slot),
            change.bytes_a,
            change.bytes_b,
            change.change,
            change.b.arena_bytes if change.b else None,
        )
        for change in compare(a, b)
    ]


def as_json(rows: Sequence[Row]) -> str:
    """`{"version": 1, "rows": [...]}`."""
    return json.dumps({"version": 1, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"


def print_rows(rows: Sequence[Row], *, single: bool) -> None:
    """A table on stdout."""
    names = ("warm-up", "from the lock on") if single else ("run A", "run B")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("site", overflow="fold")
    for name in (*names, "arena"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change")
    for row in rows:
        site = f"{row.site} ({row.slot})" if row.slot else row.site
        sizes = [human(n) if n else "-" for n in (row.before, row.after, row.arena)]
        table.add_row(site, *sizes, row.change)
    Console(highlight=False).print(table)
