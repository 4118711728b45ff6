"""What a fleet's report says of each run, in the words of the faults that were planted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Row = Mapping[str, Any]


def _codes(row: Row, *wanted: str) -> bool:
    return bool(set(row["codes"]) & set(wanted))


def _said(row: Row, *parts: str) -> bool:
    return any(part in word for word in row["words"] for part in parts)


_UNREADABLE: Final = ("no whole record", "has trace format", "not a trace record")
SIGNS: Final[dict[str, Callable[[Row], bool]]] = {
    "death": lambda row: row["died"] and _codes(row, "WS101"),
    "survived": lambda row: not row["died"] and _codes(row, "WS101"),
    "latent": lambda row: _codes(row, "WS103") and row["verdict"] == "findings",
    "risk": lambda row: _codes(row, "WS107"),
    "small rank": lambda row: _codes(row, "WS204"),
    "dead node": lambda row: row["ranks"] < row["expected"] and not _said(row, *_UNREADABLE),
    "cut": lambda row: _said(row, "is cut"),
    "torn": lambda row: _said(row, "no whole record"),
    "clock": lambda row: _said(row, "its clock is wrong"),
    "twice": lambda row: _said(row, "lay there twice"),
    "grown copy": lambda row: _said(row, "the longest was read"),
    "old format": lambda row: row["kind"] == "run" and _said(row, "has trace format 0"),
    "all old": lambda row: row["kind"] == "unread" and _said(row, "has trace format 0"),
    "broken line": lambda row: _said(row, "not a trace record"),
    "killed": lambda row: _said(row, "run.json has no end"),
    "rule": lambda row: row["refuted"],
    "no worker": lambda row: _said(row, "no worker left a trace"),
    "restarted": lambda row: _said(row, "left more than one trace"),
    "log": lambda row: row["kind"] == "log" and _codes(row, "WS101"),
    "quiet log": lambda row: row["kind"] == "log" and not row["codes"],
    "foreign": lambda row: row["kind"] == "unread" and _said(row, "is not a wstrace trace"),
}


def found(row: Row) -> set[str]:
    """The faults that a row of the JSON shows. A log is no run, and a run no log."""
    if row["kind"] == "log":
        return {name for name in ("log", "quiet log") if SIGNS[name](row)}
    return {name for name, sign in SIGNS.items() if "log" not in name and sign(row)}


def wrong(rows: Iterable[Row], planted: Mapping[str, str]) -> list[str]:
    """Where the report and the plan differ: a line for each fault missed or invented."""
    told = []
    seen = {row["run"]: found(row) for row in rows}
    for run, fault in planted.items():
        wanted = set() if fault == "none" else {fault}
        got = seen.pop(run, None)
        if got != wanted:
            told.append(f"{run}: planted {fault}, found {got}")
    return told + [f"{run}: never planted, found {got}" for run, got in seen.items()]
