"""What a fleet's rows say together: one table a question, as pandas DataFrames.

Escapes, sizes and bounds are those of each run's report; here they are only counted and
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wstrace.findings.codes import ESCAPES, FORETOLD
from wstrace.fleet.grouped_rows import GroupedRows, How
from wstrace.fleet.regressions import Regression, regressions, setting_text
from wstrace.fleet.summary import RunSummary

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
WHERE: Final = ("model", "vllm")
SITE: Final = ("file", "function", "ubatch", "lane")


_GROUPED: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, How]]]] = {
    "versions": (
        WHERE,
        {
            **dict.fromkeys(("runs", "logs", "clean", "findings", "inconclusive"), "sum"),
            "escaped": "sum",
            "ranks": "max",
            "first": "min",
            "last": "max",
        },
    ),
    "escapes": (
        ("file", "function", "caller", "ubatch", "lane", *WHERE),
        {
            "runs": "sum",
            "died": "sum",
            "codes": "max",
            "asked_bytes": "max",
            "arena_bytes": "min",
            "bound_bytes": "max",
            "grade": "first",
            "first": "min",
            "last": "max",
            "example": "first",
            "page": "first",
        },
    ),
    "arenas": (
        (*WHERE, "ubatch", "lane", "reserved"),
        {
            "runs": "sum",
            "arena_bytes": "max",
            "smallest_bytes": "min",
            "used_bytes": "max",
            "spare_bytes": "max",
            "ranks_differ": "sum",
        },
    ),
    "risks": (
        (*WHERE, *SITE, "code"),
        {
            "runs": "sum",
            "bound_bytes": "max",
            "arena_bytes": "min",
            "grade": "first",
            "example": "first",
            "page": "first",
        },
    ),
    "refuted": (
        ("rule", "file", "function", *WHERE),
        {"runs": "sum", "why": "first", "example": "first", "page": "first"},
    ),
    "groups": (
        ("model", "setting", "vllm"),
        {"runs": "sum", "escaped": "sum", "example": "first"},
    ),
    "sites": (
        ("model", "setting", "vllm", *SITE),
        {
            "runs": "sum",
            "escaped": "sum",
            "warmup_low": "min",
            "warmup_high": "max",
            "arena_low": "min",
            "arena_high": "max",
            "bound_low": "min",
            "bound_high": "max",
            "example": "first",
        },
    ),
}
"""What each table is grouped by, and how its other columns are brought together."""


class Tables:
    """The tables of a fleet, made row by row."""

    def __init__(self) -> None:
        self._rows = {name: GroupedRows(*grouped) for name, grouped in _GROUPED.items()}
        self._done: dict[str, Any] = {}

    def add(self, row: RunSummary) -> None:
        """Count one row in; what could not be read is in no table."""
        self._done.clear()
        if row.kind == "unread":
            return
        self._rows["versions"].add(_version(row))
        for escape in _escapes(row):
            self._rows["escapes"].add(escape)
        for risk in _risks(row):
            self._rows["risks"].add(risk)
        if row.kind == "log":
            return
        for arena in _arenas(row):
            self._rows["arenas"].add(arena)
        for refuted in _refuted(row):
            self._rows["refuted"].add(refuted)
        setting = setting_text(row.setting)
        group = {"model": row.model, "setting": setting, "vllm": row.vllm, "runs": 1}
        escaped = int(_has_escape(row))
        self._rows["groups"].add({**group, "escaped": escaped, "example": row.run})
        for site in _sites(row):
            self._rows["sites"].add({**group, **site, "example": row.run})

    def versions(self) -> pd.DataFrame:
        """A row a model and vLLM version: how many runs, with which verdict."""
        return self._made("versions", self._rows["versions"].frame)

    def escapes(self) -> pd.DataFrame:
        """A row a site that escaped, its model and version; the most runs first."""
        return self._sorted("escapes", {"runs": False, "asked_bytes": False, "file": True})

    def arenas(self) -> pd.DataFrame:
        """Used against reserved: a row a model, version and slot, the most to spare first."""
        return self._sorted("arenas", {"spare_bytes": False, "model": True})

    def risks(self) -> pd.DataFrame:
        """Sites whose bound is above the arena of a run in which they did not escape."""
        return self._sorted("risks", {"runs": False, "bound_bytes": False, "model": True})

    def refuted(self) -> pd.DataFrame:
        """Rules of known sites that a request of some run contradicts."""
        return self._sorted("refuted", {"runs": False, "rule": True})

    def regressions(self) -> list[Regression]:
        """What got worse from one vLLM version to a later one, with the same settings."""
        groups, sites = self._rows["groups"], self._rows["sites"]
        return self._made("regressions", lambda: regressions(groups.frame(), sites.frame()))

    def _sorted(self, name: str, ascending: Mapping[str, bool]) -> pd.DataFrame:
        columns, ways = list(ascending), list(ascending.values())
        frame = self._rows[name].frame
        return self._made(name, lambda: frame().sort_values(columns, ascending=ways))

    def _made(self, name: str, make: Callable[[], T]) -> T:
        """A table once for all pages that show a part of it: a site has one a model."""
        if name not in self._done:
            self._done[name] = make()
        found: T = self._done[name]
        return found


def _has_escape(row: RunSummary) -> bool:
    return any(finding["code"] in ESCAPES for finding in row.findings)


def _version(row: RunSummary) -> Mapping[str, Any]:
    verdicts = ("clean", "findings", "inconclusive")
    return {
        "model": row.model,
        "vllm": row.vllm,
        "runs": int(row.kind == "run"),
        "logs": int(row.kind == "log"),
        **{v: int(row.kind == "run" and row.verdict == v) for v in verdicts},
        "escaped": int(_has_escape(row)),
        "ranks": row.ranks,
        "first": row.day or None,
        "last": row.day or None,
    }


def _escapes(row: RunSummary) -> Iterator[Mapping[str, Any]]:
    """Each site once a run, with its worst numbers."""
    worst: dict[tuple[object, ...], dict[str, Any]] = {}
    for finding in row.findings:
        if finding["code"] not in ESCAPES:
            continue
        place = (finding["file"], finding["function"], finding["ubatch"], finding["lane"])
        key = (*place, *_engine(finding, row))
        seen = worst.setdefault(key, {**finding, "codes": finding["code"]})
        if (finding["serving_bytes"] or 0) > (seen["serving_bytes"] or 0):
            worst[key] = {**finding, "codes": finding["code"]}
    for (*_, model, vllm), finding in worst.items():
        # the line moves from build to build: the function and its file are the site
        caller = "" if finding["file"] else finding["caller"] or "unknown site"
        yield {
            "file": finding["file"] or "",
            "function": finding["function"] or "",
            "caller": caller,
            "ubatch": finding["ubatch"],
            "lane": finding["lane"],
            "model": model,
            "vllm": vllm,
            "runs": 1,
            "died": int(row.died),
            "codes": finding["codes"],
            "asked_bytes": finding["serving_bytes"],
            "arena_bytes": finding["arena_bytes"],
            "bound_bytes": finding["bound_bytes"],
            "grade": finding["grade"],
            "first": row.day or None,
            "last": row.day or None,
            "example": row.run,
            "page": row.page or None,
        }


def _engine(finding: Mapping[str, Any], row: RunSummary) -> tuple[str, str]:
    """Model and version of a finding: its own where a log may be of several engines."""
    return finding.get("model", row.model), finding.get("vllm", row.vllm)


def _risks(row: RunSummary) -> Iterator[Mapping[str, Any]]:
    for finding in row.findings:
        above = (finding["bound_bytes"] or 0) > (finding["arena_bytes"] or 0)
        if finding["code"] in FORETOLD and finding["severity"] != "note" and above:
            model, vllm = _engine(finding, row)
            names = ("file", "function", "ubatch", "lane", "code", "bound_bytes", "grade")
            yield {
                **{name: finding[name] for name in names},
                "arena_bytes": finding["arena_bytes"],
                "model": model,
                "vllm": vllm,
                "runs": 1,
                "example": row.run,
                "page": row.page or None,
            }


def _arenas(row: RunSummary) -> Iterator[Mapping[str, Any]]:
    for arena in row.arenas:
        yield {
            "model": row.model,
            "vllm": row.vllm,
            "ubatch": arena.ubatch,
            "lane": arena.lane,
            "reserved": row.reserved,
            "runs": 1,
            "arena_bytes": arena.largest,
            "smallest_bytes": arena.smallest,
            "used_bytes": arena.used,
            "spare_bytes": max(0, arena.largest - arena.used),
            "ranks_differ": int(arena.largest != arena.smallest),
        }


def _refuted(row: RunSummary) -> Iterator[Mapping[str, Any]]:
    found = {(s["rule"], s["file"], s["function"]): s for s in row.sites if s["refuted"]}
    for site in found.values():
        yield {
            "rule": site["rule"],
            "file": site["file"],
            "function": site["function"],
            "model": row.model,
            "vllm": row.vllm,
            "runs": 1,
            "why": site["refuted"],
            "example": row.run,
            "page": row.page or None,
        }


def _sites(row: RunSummary) -> Iterator[Mapping[str, Any]]:
    escaped = {
        (f["file"], f["function"], f["ubatch"], f["lane"])
        for f in row.findings
        if f["code"] in ESCAPES
    }
    smallest = {(arena.ubatch, arena.lane): arena for arena in row.arenas}
    for site in row.sites:
        key = tuple(site[name] for name in SITE)
        arena = smallest.get((site["ubatch"], site["lane"]))
        proved = site["bound_bytes"] if site["grade"] == "proved" else None
        yield {
            **{name: site[name] for name in SITE},
            "escaped": int(key in escaped),
            "warmup_low": site["warmup_bytes"],
            "warmup_high": site["warmup_bytes"],
            "arena_low": arena.smallest if arena else None,
            "arena_high": arena.largest if arena else None,
            "bound_low": proved,
            "bound_high": proved,
        }
