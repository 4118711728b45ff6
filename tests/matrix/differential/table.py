"""The table of docs/bounds.md: how often proved bounds are exact, close, and not proved.

`scripts/test-versions --write-bounds` runs the long form and writes the table anew.
"""

from __future__ import annotations

import sys
from collections import Counter
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
        *_refused(tallies),
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


def _refused(tallies: Tallies) -> list[str]:
    """Why an engine has no proved bound, the most frequent reason first."""
    counts: Counter[str] = Counter()
    for tally in tallies.values():
        for why, engines in tally.refused.items():
            counts[_reason(why)] += engines
    told = [f"{why} ({engines:,})" for why, engines in counts.most_common()]
    return [f"Engines without a proved bound, by reason: {'; '.join(told)}.", ""]


def _reason(why: str) -> str:
    """A refusal without its rule and its numbers."""
    for part in (" holds only ", " needs "):
        if part in why:
            return f"{part.strip()} {why.partition(part)[2]}"
    return "the rule does not give a request" if "does not give" in why else why


def _unplayed(tallies: Tallies) -> list[str]:
    """Scenes that a release has and that no engine played there, and those that are high."""
    releases: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    for (version, name), tally in tallies.items():
        if not tally.played:
            releases.setdefault(name, []).append(version)
            why = max(tally.unplayed, key=lambda why: tally.unplayed[why], default="")
            reasons[name] = why or "no engine that was drawn comes there"
    told = [
        f"- {name} ({', '.join(versions)}): {reasons[name]}."
        for name, versions in sorted(releases.items())
    ]
    lines = ["In a release, but not run there:", "", *told, ""] if told else []
    high = sorted({n for (_, n), t in tallies.items() if t.proved and t.close < 0.9 * t.proved})
    if high:
        lines.append(f"Above {ALLOWED} times for more than a tenth: {', '.join(high)}.")
    return lines


def main() -> int:
    """Write the table between its markers."""
    table = render(long_run())
    made = between(PAGE.read_text("utf-8"), BEGIN, END, f"\n{table}\n")
    PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
