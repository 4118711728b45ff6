"""The survey's table in docs/formulas.md: how many sites are proved, and what is open and why.

`scripts/test-versions --write-survey` slices every release from 0.20, holds its rules against a
short run (a quarter of an hour), and writes the table anew.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.matrix.differential.table import LONG
from tests.matrix.wheels import python_files
from tools.bounds_survey import Shares, measured
from tools.docs.page import between

PAGE = Path(__file__).parents[3] / "docs" / "formulas.md"
BEGIN, END = "<!-- made by scripts/test-versions --write-survey -->", "<!-- end -->"
FIRST = (0, 20)
"""The release from which the share is asked for."""
SURVEYED = tuple(v for v in LONG if tuple(map(int, v.split(".")[:2])) >= FIRST)


def render(found: Mapping[str, Shares]) -> str:
    """The shares of each release, then each open site with its reason and its releases."""
    lines = [
        "| release | serving calls | formula | closed by slicing alone | closed, or a rule"
        " | proved |",
        "|---|---|---|---|---|---|",
    ]
    for version, shares in found.items():
        parts = (shares.formula, shares.closed, shares.ruled, shares.proved)
        cells = " | ".join(f"{part:.1%}" for part in parts)
        lines.append(f"| {version} | {shares.sites} | {cells} |")
    lines += ["", "Not proved, or not in all classes:", ""]
    return "\n".join([*lines, *_open(found)])


def _open(found: Mapping[str, Shares]) -> list[str]:
    """Each open site with its releases, and the reason in the newest of them."""
    releases: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    for version, shares in found.items():
        for name, why in shares.open_sites:
            releases.setdefault(name, []).append(version)
            reasons[name] = why
    return [f"- `{name}` ({', '.join(at)}): {reasons[name]}." for name, at in releases.items()]


def main() -> int:
    """Write the table between its markers."""
    found = {v: measured(v, python_files(v) / "vllm")[0] for v in SURVEYED}
    made = between(PAGE.read_text("utf-8"), BEGIN, END, f"\n{render(found)}\n")
    PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
