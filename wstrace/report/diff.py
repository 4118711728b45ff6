"""The diff as rows: warm-up against serving of one run, or run A against run B."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.console import plain_console
from wstrace.report.finding_text import OUTCOMES, REPLAYED, asked_text, slot_text
from wstrace.report.safe import clean
from wstrace.report.verdict import sentence
from wstrace.runs.compare import compare
from wstrace.runs.run import RunSite
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


def phase_rows(run: AnalysedRun) -> list[Row]:
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
    return REPLAYED if site.unknown else OUTCOMES[site.outcome]


def run_rows(a: AnalysedRun, b: AnalysedRun) -> list[Row]:
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
        for change in compare(a.run, b.run)
    ]


def as_json(rows: Sequence[Row], runs: Sequence[AnalysedRun]) -> str:
    """`{"version": 1, "rows": [...], "verdicts": [...]}`: a verdict of each run."""
    made = {"version": 1, "rows": [asdict(row) for row in rows]}
    return json.dumps(made | {"verdicts": [run.verdict() for run in runs]}, indent=2) + "\n"


def print_rows(rows: Sequence[Row], runs: Sequence[AnalysedRun]) -> None:
    """The verdict of each run and a table, on stdout."""
    single = len(runs) == 1
    console = plain_console()
    for name, run in zip(("",) if single else ("run A: ", "run B: "), runs, strict=True):
        console.print(f"{name}{sentence(run)}", soft_wrap=True)
    console.print()
    names = ("warm-up", "from the lock on") if single else ("run A", "run B")
    lines = [("site", *names, "arena", "change"), *map(_cells, rows)]
    if console.is_terminal and _width(lines) > console.width:
        lines = [lines[0], *((_short(line[0]), *line[1:]) for line in lines[1:])]
    for line in _aligned(lines):
        console.print(line, soft_wrap=True)


def _cells(row: Row) -> tuple[str, ...]:
    site = f"{row.site} ({row.slot})" if row.slot else row.site
    asked = map(asked_text, (row.before, row.after))
    return (clean(site), *asked, human(row.arena), row.change)


def _short(site: str) -> str:
    """Without the folders of the file: `turboquant_attn.py:TurboQuant._prefill`."""
    return site.rpartition("/")[2]


def _width(lines: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True))


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their longest cell: a name is never broken."""
    first, *middle, last = (max(map(len, column)) for column in zip(*lines, strict=True))
    return [
        "  ".join(
            [
                line[0].ljust(first),
                *(cell.rjust(size) for cell, size in zip(line[1:-1], middle, strict=True)),
                line[-1].ljust(last),
            ]
        ).rstrip()
        for line in lines
    ]
