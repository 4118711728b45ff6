"""A fleet as a static site: index.html, a page a model, links to each run's report.

Pages are plain files with relative links, so that any web server, or none, can show them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError
from wstrace.file_names import name_of_its_own
from wstrace.files import make_folder, naming, write_whole
from wstrace.report.fleet_rows import (
    TableCell,
    count,
    counted,
    tables,
    trouble_rows,
    word,
)
from wstrace.report.html.page import build
from wstrace.report.safe import clean

if TYPE_CHECKING:
    from wstrace.fleet.fleet import Fleet
    from wstrace.fleet.summary import RunSummary

MOST_ROWS: Final = 500
MOST_MODELS: Final = 5000
"""Models and versions of the index: a page that is not linked there is found by nobody."""
MOST_RUNS: Final = 1000
MOST_NOTES: Final = 200
_HEAD: Final = 4096
"""Bytes that hold the start of a page, with what made it."""
RUNS: Final = "runs"
MODELS: Final = "models"
UNNAMED: Final = "no model named"


@dataclass(frozen=True)
class PageTable:
    """One table of a page; `left` rows are not on it."""

    id: str
    title: str
    head: Sequence[str]
    rows: list[list[TableCell]]
    left: int = 0
    lead: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Which columns are numbers throughout."""
        return [all(row[n].number for row in self.rows) for n in range(len(self.head))]

    @property
    def total(self) -> int:
        """Rows with those that are left out."""
        return len(self.rows) + self.left


def write_site(fleet: Fleet, folder: Path) -> list[Path]:
    """Write index.html and models/*.html; the reports below runs/ are there already. Pages of
    an earlier site that are not of this one go.

    Returns the pages. Raises WstraceError where one cannot be written.
    """
    make_folder(folder / MODELS)
    models = sorted(set(fleet.tables.versions()["model"]))
    written = []
    for model in models:
        path = folder / MODELS / model_page(model)
        _write(_model_page(fleet, model), path)
        written.append(path)
    index = folder / "index.html"
    _write(_index(fleet), index)
    _remove_stale(folder / MODELS, {path.name for path in written})
    _remove_stale(folder / RUNS, {row.page for row in fleet.rows()})
    return [index, *written]


def is_ours(page: Path) -> bool:
    """Whether wstrace made a page. Raises OSError."""
    with page.open("rb") as file:
        return b'<meta name="generator" content="wstrace ' in file.read(_HEAD)


def refuse_foreign(folder: Path) -> None:
    """WstraceError where the folder has an index.html that wstrace did not make."""
    index = folder / "index.html"
    if index.is_file() and not is_ours(index):
        raise WstraceError(
            f"{index} was not made by wstrace and is not overwritten.",
            "Give -o an empty folder, or one with a site of `wstrace fleet`.",
        )


def _remove_stale(folder: Path, pages: set[str]) -> None:
    """Remove pages of an earlier site that this one does not have."""
    for page in folder.glob("*.html"):
        with suppress(OSError):  # nothing links to it
            if page.name not in pages and page.is_file() and is_ours(page):
                page.unlink()


def _write(page: str, path: Path) -> None:
    with naming(path):
        write_whole(page.encode(errors="backslashreplace"), path)


def model_page(model: str) -> str:
    """The file of a model's page: its name as far as a file may have it, and a digest."""
    return f"{name_of_its_own(model, 'model', 60)}.html"


def _index(fleet: Fleet) -> str:
    shown = list(_tables(fleet, None))
    notes = [("", clean(wrong, 300)) for wrong in fleet.wrong]
    room = max(0, MOST_NOTES - len(notes))
    notes += islice(trouble_rows(fleet), room)
    # counted as they are: to make a million of them fit for a page takes minutes
    left = max(0, sum(1 for _ in fleet.troubles()) - room)
    return _page("fleet", counted(fleet), "", "", shown, notes, left)


def _model_page(fleet: Fleet, model: str) -> str:
    runs = fleet.store.of_model(model, MOST_RUNS + 1)
    more = len(runs) > MOST_RUNS
    head = ("run", "started", "vLLM", "verdict", "codes", "ranks", "largest rank", "what")
    rows = [_run(row) for row in runs[:MOST_RUNS]]
    lead = f"The newest {MOST_RUNS:,}, those with findings first." if more else ""
    shown = [*_tables(fleet, model), PageTable(RUNS, "Runs", head, rows, 0, lead)]
    title = clean(model) or UNNAMED
    return _page(title, title, "../index.html", "../", shown, [], 0)


def _run(row: RunSummary) -> list[TableCell]:
    codes = " ".join(sorted({finding["code"] for finding in row.findings}))
    ranks = count(row.ranks)
    if row.expected > row.ranks:
        ranks = replace(ranks, text=f"{row.ranks:,} of {row.expected:,}")
    started = row.started[:16].replace("T", " ")
    return [
        word(row.run, f"{RUNS}/{row.page}" if row.page else ""), word(started or "-"),
        word(row.vllm), word(row.verdict), word(codes or "-"), ranks,
        word(row.largest_rank or "-"), word(row.sentence),
    ]  # fmt: skip


def _tables(fleet: Fleet, model: str | None) -> Iterator[PageTable]:
    """The tables of the fleet, or of one model."""
    for name, title, (head, rows) in tables(fleet, model):
        most = MOST_MODELS if name == "models" else MOST_ROWS
        shown = [[_linked(cell) for cell in row] for row in rows[:most]]
        if name == "models" and model is None:
            named = [str(m) for m in fleet.tables.versions()["model"]]
            for row, of in zip(shown, named, strict=False):
                row[0] = replace(
                    row[0], page=f"{MODELS}/{model_page(of)}", text=clean(of) or UNNAMED
                )
        left = max(0, len(rows) - most)
        yield PageTable(name, title[0].upper() + title[1:], head, shown, left)


def _linked(cell: TableCell) -> TableCell:
    """A cell that names a run's report, with the report's folder."""
    return replace(cell, page=f"{RUNS}/{cell.page}") if cell.page else cell


def _page(
    title: str,
    headline: str,
    up: str,
    base: str,
    tables: Sequence[PageTable],
    notes: Sequence[tuple[str, str]],
    left: int,
) -> str:
    context = {
        "title": title,
        "headline": headline,
        "up": up,
        "base": base,
        "tables": tables,
        "notes": notes,
        "notes_left": left,
    }
    return build("fleet.html.j2", context, {})
