"""A fleet on a terminal: the numbers, then one table a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wstrace.report.console import plain_console
from wstrace.report.fleet_rows import TableCell, counted, tables, trouble_rows
from wstrace.report.safe import clean
from wstrace.units import plural

if TYPE_CHECKING:
    from wstrace.fleet.fleet import Fleet

MOST: Final = 12


def render_fleet(fleet: Fleet, width: int = 100) -> str:
    """The fleet as plain text of a given width."""
    out = StringIO()
    print_fleet(fleet, plain_console(file=out, width=width, no_color=True))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def print_fleet(fleet: Fleet, console: Console) -> None:
    """Print the fleet on `console`."""
    console.print(Text(counted(fleet), style="bold"))
    for _, title, (head, rows) in tables(fleet):
        if rows:
            console.print(_table(title, head, rows))
    for line in _words(fleet):
        console.print(Text(line, style="dim"))


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[TableCell]]
) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for number, name in enumerate(head):
        right = number > 0 and all(row[number].number for row in rows)
        table.add_column(
            name, justify="right" if right else "left", overflow="fold", no_wrap=right
        )
    for row in rows[:MOST]:
        table.add_row(*(cell.on_terminal for cell in row))
    parts: list[RenderableType] = [Text(title, style="bold"), Padding(table, (0, 0, 0, 2))]
    if len(rows) > MOST:
        more = plural(len(rows) - MOST, "more row")
        parts.append(Padding(Text(f"{more}: --format json, or -o FOLDER"), (0, 0, 0, 2)))
    return Padding(Group(*parts), (1, 0, 0, 0))


def _words(fleet: Fleet) -> Iterable[str]:
    yield ""
    for wrong in fleet.wrong[:MOST]:
        yield f"note: {clean(wrong, 300)}"
    shown = list(islice(trouble_rows(fleet), MOST + 1))
    for run, word in shown[:MOST]:
        yield f"note: {run}: {word}"
    if len(shown) > MOST:
        yield "more notes: --format json, or -o FOLDER"
