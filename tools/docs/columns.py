"""Write the tables of columns in docs/python-api.md and docs/fleet.md from their data."""

from __future__ import annotations

from typing import Final

from tools import ROOT
from tools.docs.page import Generator, Pages, between
from wstrace.frames.columns import FLEET, TABLES, Column

PAGE = ROOT / "docs" / "python-api.md"
FLEET_PAGE = ROOT / "docs" / "fleet.md"
BEGIN, END = "<!-- made by scripts/make-docs columns -->", "<!-- end -->"


HEAD: Final = ("| column | dtype | unit | what |", "|---|---|---|---|")


def tables() -> str:
    lines: list[str] = []
    for name, columns in TABLES.items():
        lines += [f"#### {name}()", "", *HEAD, *map(row, columns), ""]
    return "\n".join(lines)


def row(column: Column) -> str:
    dtype = f"{column.dtype}, ordered" if column.categories else column.dtype
    return f"| `{column.name}` | {dtype} | {column.unit} | {column.meaning} |"


def pages() -> Pages:
    yield PAGE, between(PAGE.read_text(), BEGIN, END, f"\n{tables()}")
    fleet = "\n".join(("", *HEAD, *map(row, FLEET), ""))
    yield FLEET_PAGE, between(FLEET_PAGE.read_text(), BEGIN, END, fleet)


GENERATOR: Final = Generator("columns", pages)
