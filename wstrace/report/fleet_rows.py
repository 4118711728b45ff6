"""The tables of a fleet as people read them: heads and cells, for the terminal and the site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wstrace.report.finding_text import slot_text
from wstrace.report.safe import clean
from wstrace.trace.records import Slot
from wstrace.units import human, plural

if TYPE_CHECKING:
    import pandas as pd

    from wstrace.fleet.fleet import Fleet
    from wstrace.fleet.regressions import Regression

Rows = tuple[Sequence[str], list[list["TableCell"]]]


LONG = 18
"""Characters from which a cell may be broken."""


@dataclass(frozen=True)
class TableCell:
    """What a cell shows, by what it is sorted (a number's value), the page that it names, and
    what a terminal shows instead."""

    text: str
    sort: int | str = ""
    page: str = ""
    short: str = ""

    @property
    def number(self) -> bool:
        """Whether it is a number, or an unknown one."""
        return isinstance(self.sort, int)

    @property
    def long(self) -> bool:
        """Whether a page may break it into lines."""
        return len(self.text) > LONG

    @property
    def on_terminal(self) -> str:
        """The text where there is little room."""
        return self.short or self.text


def counted(fleet: Fleet) -> str:
    """The fleet in one sentence."""
    n = fleet.counts
    told = [f"{n[name]:,} {name}" for name in ("clean", "findings", "inconclusive")]
    told[1] = f"{n['findings']:,} with findings ({n['died']:,} died of one)"
    parts = [f"{plural(n['runs'], 'run')} of {plural(n['ranks'], 'rank')}: {', '.join(told)}"]
    if n["logs"]:
        parts.append(plural(n["logs"], "log"))
    if n["unread"]:
        parts.append(f"{n['unread']:,} could not be read")
    return "; ".join(parts) + "."


def site(row: Any, page: object = "") -> TableCell:
    """`turboquant_attn.py:TurboQuantImpl._decode`, with its slot where it is not the first.

    A terminal gets the function without its class, as vLLM's error has it.
    """
    file = str(row["file"] or "").rpartition("/")[2]
    function = str(row["function"] or "")
    slot = slot_text(_slot(row))
    names = []
    for one in (function, function.rpartition(".")[2]):
        name = ":".join(part for part in (file, one) if part)
        name = name or str(row.get("caller") or "") or "the arena"
        names.append(clean(f"{name} ({slot})" if slot else name, 300))
    return TableCell(names[0], names[0], str(page or ""), names[1])


def _slot(row: Any) -> Slot | None:
    """The row's slot; None where it is unknown."""
    ubatch, lane = _whole(row["ubatch"]), _whole(row["lane"])
    return None if ubatch is None or lane is None else Slot(ubatch, lane)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def size(value: Any) -> TableCell:
    """Bytes as people read them; a dash where they are unknown."""
    number = _whole(value)
    return TableCell(human(number), -1 if number is None else number)


def count(value: Any) -> TableCell:
    """A whole number."""
    number = _whole(value) or 0
    return TableCell(f"{number:,}", number)


def word(value: object, page: object = "") -> TableCell:
    """A text, `?` where there is none; `page` is what it links to."""
    text = clean(str(value or "?"), 300)
    return TableCell(text, text, str(page or ""))


def _model(row: Any) -> list[TableCell]:
    return [word(row["model"]), word(row["vllm"])]


def _dicts(frame: pd.DataFrame, model: str | None) -> list[dict[Any, Any]]:
    """The rows, of one model or all, with None for what is unknown."""
    import pandas as pd

    found = frame if model is None else frame[frame["model"] == model]
    return [
        {name: None if pd.isna(value) else value for name, value in row.items()}
        for row in found.to_dict("records")
    ]


def version_rows(fleet: Fleet, model: str | None = None) -> Rows:
    """Models and versions with the verdicts of their runs."""
    head = ("model", "vLLM", "runs", "logs", "clean", "escaped", "inconclusive", "last")
    rows = [
        [
            *_model(r), count(r["runs"]), count(r["logs"]), count(r["clean"]),
            count(r["escaped"]), count(r["inconclusive"]), word(r["last"] or "-"),
        ]
        for r in _dicts(fleet.tables.versions(), model)
    ]  # fmt: skip
    return head, rows


def escape_rows(fleet: Fleet, model: str | None = None) -> Rows:
    """Which sites escape where."""
    head = ("site", "model", "vLLM", "runs", "asked", "arena", "can need", "grade")
    rows = [
        [
            site(r, r["page"]), *_model(r), count(r["runs"]),
            size(r["asked_bytes"]), size(r["arena_bytes"]), size(r["bound_bytes"]),
            word(r["grade"] or "-"),
        ]
        for r in _dicts(fleet.tables.escapes(), model)
    ]  # fmt: skip
    return head, rows


def risk_rows(fleet: Fleet, model: str | None = None) -> Rows:
    """Models at risk: the bound against the arena."""
    head = ("site", "model", "vLLM", "runs", "can need", "arena", "code", "grade")
    rows = [
        [
            site(r, r["page"]), *_model(r), count(r["runs"]),
            size(r["bound_bytes"]), size(r["arena_bytes"]), word(r["code"]),
            word(r["grade"] or "-"),
        ]
        for r in _dicts(fleet.tables.risks(), model)
    ]  # fmt: skip
    return head, rows


def regression_rows(fleet: Fleet, model: str | None = None) -> Rows:
    """What got worse between versions."""
    head = ("what", "model", "vLLM", "site", "before", "after", "runs")
    return head, [
        _regression(r) for r in fleet.tables.regressions() if model in (None, r.model)
    ]


def _regression(found: Regression) -> list[TableCell]:
    row = {
        "file": found.file, "function": found.function, "ubatch": found.ubatch,
        "lane": found.lane,
    }  # fmt: skip
    sizes = [size(found.before), size(found.after)]
    if found.change == "escapes":
        sizes = [count(found.before), count(found.after)]
    return [
        word(found.change), word(found.model), word(f"{found.old} to {found.new}"),
        site(row), *sizes, word(f"{found.old_runs:,} and {found.new_runs:,}"),
    ]  # fmt: skip


def refuted_rows(fleet: Fleet, model: str | None = None) -> Rows:
    """Rules that a request of some run contradicts."""
    head = ("rule", "model", "vLLM", "runs", "why", "example")
    rows = [
        [
            word(r["rule"] or "-"), *_model(r), count(r["runs"]), word(r["why"]),
            word(r["example"], r["page"]),
        ]
        for r in _dicts(fleet.tables.refuted(), model)
    ]  # fmt: skip
    return head, rows


def _slot_cell(row: Any) -> TableCell:
    slot = _slot(row) or Slot()
    return TableCell(slot.text, slot.text, "", f"{slot.ubatch}, {slot.lane}")


def arena_rows(fleet: Fleet, model: str | None = None) -> Rows:
    """Used against reserved, by slot."""
    head = ("model", "vLLM", "slot", "by", "runs", "arena", "used", "spare", "ranks differ in")
    rows = [
        [
            *_model(r), _slot_cell(r),
            word("a reserve" if r["reserved"] else "warm-up"), count(r["runs"]),
            size(r["arena_bytes"]), size(r["used_bytes"]), size(r["spare_bytes"]),
            count(r["ranks_differ"]),
        ]
        for r in _dicts(fleet.tables.arenas(), model)
    ]  # fmt: skip
    return head, rows


def tables(fleet: Fleet, model: str | None = None) -> Iterator[tuple[str, str, Rows]]:
    """Each table of the fleet, or of one model, as its id, its title and its rows."""
    yield "models", "models and versions", version_rows(fleet, model)
    yield "escapes", "where sites escape", escape_rows(fleet, model)
    yield "risks", "at risk: the bound is above the arena", risk_rows(fleet, model)
    yield "regressions", "worse in a later vLLM", regression_rows(fleet, model)
    yield "rules", "rules that a trace contradicts", refuted_rows(fleet, model)
    yield "arenas", "used against reserved", arena_rows(fleet, model)


def trouble_rows(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Words about runs, in the order of run ids: run, word."""
    for row, word in fleet.troubles():
        yield clean(row.run), clean(word, 300)
