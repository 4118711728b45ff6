"""A fleet as JSON, version 1: the tables, and a line of numbers and words for every run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import pandas as pd

    from wstrace.fleet.fleet import Fleet

VERSION: Final = 1
_LEFT_OUT: Final = ("sites", "findings", "setting", "digest", "lasting", "unwritten")


def json_pieces(fleet: Fleet) -> Iterator[str]:
    """`{"version": 1, "counts", "versions", "escapes", "risks", ..., "runs"}` in pieces, a note
    and a run at a time; sizes in bytes, unknown values null."""
    tables = fleet.tables
    made = {
        "version": VERSION,
        "counts": fleet.counts,
        "files": fleet.files,
        "read": fleet.read,
        "cached": fleet.cached,
        "versions": _records(tables.versions()),
        "escapes": _records(tables.escapes()),
        "risks": _records(tables.risks()),
        "regressions": [asdict(found) for found in tables.regressions()],
        "refuted": _records(tables.refuted()),
        "arenas": _records(tables.arenas()),
    }
    yield _text(made, 0).removesuffix("}").rstrip()
    yield from _listed("notes", fleet.notes())
    yield from _listed("runs", map(_run, fleet.rows()))
    yield "\n}\n"


def _listed(name: str, values: Iterable[Any]) -> Iterator[str]:
    """A further list of the object, a value at a time."""
    yield f',\n "{name}": ['
    between = "\n"
    for value in values:
        yield f"{between}  {_text(value, 2)}"
        between = ",\n"
    yield "]" if between == "\n" else "\n ]"


def _text(value: Any, indent: int) -> str:
    """As JSON with one space a level, `indent` spaces further in."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return text.replace("\n", "\n" + " " * indent)


def _run(row: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(row, name))
        for name in row.__struct_fields__
        if name not in _LEFT_OUT
    }
    codes = sorted({finding["code"] for finding in row.findings})
    refuted = sorted({str(site["rule"]) for site in row.sites if site["refuted"]})
    return {**plain, "codes": codes, "refuted": refuted}


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    import pandas as pd

    return [
        {str(name): None if pd.isna(value) else _plain(value) for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's own."""
    return value.item() if hasattr(value, "item") else value
