"""The table of docs/bounds.md: how often proved bounds are exact, close, and not proved.

`scripts/test-versions --write-bounds` runs the long form and writes the table anew.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.matrix.differential.harness import ALLOWED, Tally, run
from tests.matrix.differential.known_low import KNOWN, reason_of
from tests.matrix.differential.released import Release
from tests.matrix.wheels import PINNED, python_files
from tools.docs.page import between

PAGE = Path(__file__).parents[3] / "docs" / "bounds.md"
BEGIN, END = "<!-- made by scripts/test-versions --write-bounds -->", "<!-- end -->"
NO_RULE = ("0.22.1", "0.23.0")
"""Releases that no rule's range begins or ends with."""
LONG = tuple(sorted({*PINNED, *NO_RULE}, key=lambda v: [int(part) for part in v.split(".")]))
Tallies = Mapping[tuple[str, str], Tally]


def long_run(engines: int = 25, states: int = 14) -> Tallies:
    """Every release of the matrix; as it stands over 100,000 states."""
    return run([Release(python_files(v), v) for v in LONG], engines=engines, states=states)


def render(tallies: Tallies) -> str:
    """The table, and in words what is too low and what was not run."""
    lines = [
        "| release | sites | states | engines | proved | exact | up to 1.25 times | too low |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(version, tallies) for version in dict.fromkeys(v for v, _ in tallies)),
        "",
        *_lows(tallies),
        *_unplayed(tallies),
    ]
    return "\n".join(lines)


def _row(version: str, tallies: Tallies) -> str:
    mine = [t for (v, _), t in tallies.items() if v == version and t.played]
    proved = sum(t.proved for t in mine)
    cells: list[int | str] = [
        len(mine), sum(t.states for t in mine), sum(t.engines for t in mine), proved,
        _share(sum(t.exact for t in mine), proved), _share(sum(t.close for t in mine), proved),
        sum(len(t.lows) for t in mine),
    ]  # fmt: skip
    told = [f"{cell:,}" if isinstance(cell, int) else cell for cell in cells]
    return f"| {version} | {' | '.join(told)} |"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _lows(tallies: Tallies) -> list[str]:
    lows = [low for tally in tallies.values() for low in tally.lows]
    lines = ["Engines whose proved bound was too low, by reason (the largest ratio):", ""]
    for known in KNOWN:
        mine = [low.asked / max(1, low.promised) for low in lows if reason_of(low) == known]
        if mine:
            lines.append(f"- {known.reason}: {len(mine)} ({max(mine):.2f}).")
    return [*lines, ""] if lows else []


def _unplayed(tallies: Tallies) -> list[str]:
    names = sorted({name for (_, name), tally in tallies.items() if not tally.played})
    played = {name for (_, name), tally in tallies.items() if tally.played}
    never = [name for name in names if name not in played]
    high = sorted({n for (_, n), t in tallies.items() if t.proved and t.close < 0.9 * t.proved})
    told = [f"Not run in any release: {', '.join(never)}."] if never else []
    if high:
        told.append(f"Above {ALLOWED} times for more than a tenth: {', '.join(high)}.")
    return told


def main() -> int:
    """Write the table between its markers."""
    made = between(PAGE.read_text("utf-8"), BEGIN, END, f"\n{render(long_run())}\n")
    PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
