"""Claims: what was expected, what was found, whether it holds; as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.gpu.evidence import MissingError
from wstrace.errors import WstraceError

Outcome = tuple[object, object, bool]


@dataclass(frozen=True)
class Claim:
    """One row. `ok` is None where the run did not come so far; `found` then says why."""

    scenario: str
    claim: str
    expected: str
    found: str
    ok: bool | None


def claim(scenario: str, text: str, check: Callable[[], Outcome]) -> Claim:
    """Evaluate one claim; what its files lack makes it `not run`, never true or false."""
    try:
        expected, found, ok = check()
    except (MissingError, WstraceError, OSError) as error:
        return Claim(scenario, text, "", f"not run: {error}", None)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return Claim(scenario, text, "", f"not run: {type(error).__name__}: {error}", None)
    return Claim(scenario, text, show(expected), show(found), ok)


def equal(expected: object, found: object) -> Outcome:
    """The outcome of a claim that two values are the same."""
    return expected, found, expected == found


def show(value: object) -> str:
    """A value as a table cell: integers with thousands, lists by comma."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list | tuple | set):
        return ", ".join(show(item) for item in value) or "none"
    return str(value)


def markdown(claims: Sequence[Claim], not_run: Iterable[str] = ()) -> str:
    """The table, then what was not run and why."""
    marks = {True: "yes", False: "**no**", None: "not run"}
    rows = [_row(c.scenario, c.claim, c.expected, c.found, marks[c.ok]) for c in claims]
    head = ["| scenario | claim | expected | found | ok |", "|---|---|---|---|---|"]
    missing = [f"- {cell(reason)}" for reason in not_run]
    tail = ["", "Not run:", *missing] if missing else []
    return "\n".join([*head, *rows, *tail]) + "\n"


def _row(*texts: str) -> str:
    return "| " + " | ".join(map(cell, texts)) + " |"


def cell(text: str) -> str:
    """Text that cannot break a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def write(
    claims: Sequence[Claim], not_run: Sequence[str], facts: dict[str, Any], out: Path
) -> None:
    """table.md and table.json in `out`."""
    line = ", ".join(f"{k} {show(v)}" for k, v in facts.items() if v)
    (out / "table.md").write_text(f"{line}\n\n" + markdown(claims, not_run))
    payload = {"facts": facts, "claims": [asdict(c) for c in claims], "not_run": list(not_run)}
    (out / "table.json").write_text(json.dumps(payload, indent=1) + "\n")
