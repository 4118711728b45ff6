"""Write the tables of columns in docs/python-api.md from wstrace/frames/columns.py."""

from __future__ import annotations

from typing import Final

from tools import ROOT
from tools.docs.page import Generator, Pages, between
from wstrace.frames.columns import TABLES, Column

PAGE = ROOT / "docs" / "python-api.md"
BEGIN, END = "<!-- made by scripts/make-docs columns -->", "<!-- end -->"


def tables() -> str:
    lines: list[str] = []
    for name, columns in TABLES.items():
        head = ["| column | dtype | unit | what |", "|---|---|---|---|"]
        lines += [f"#### {name}()", "", *head, *map(row, columns), ""]
    return "\n".join(lines)


def row(column: Column) -> str:
    dtype = f"{column.dtype}, ordered" if column.categories else column.dtype
    return f"| `{column.name}` | {dtype} | {column.unit} | {column.meaning} |"


def pages() -> Pages:
    yield PAGE, between(PAGE.read_text(), BEGIN, END, f"\n{tables()}")


GENERATOR: Final = Generator("columns", pages)
