"""`wstrace doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from wstrace.cli.checkup import Check

OUT = Annotated[Path, typer.Option("-o", "--output", help="Where traces would go.")]
FORMAT = Annotated[Literal["text", "json"], typer.Option("--format", help="text or json.")]
MARKS = {"ok": "ok  ", "warn": "note", "bad": "FAIL"}


def command(output: OUT = Path(), form: FORMAT = "text") -> None:
    """Is the recorder ready here: plugin, vLLM version, every hook, the trace folder.

    Exits 0 when a run would be recorded, 1 when something is in the way: a hook that would
    stand down too, since the gate is then inconclusive.
    """
    from contextlib import redirect_stdout

    from wstrace.cli import checkup

    with redirect_stdout(sys.stderr):  # vLLM logs to stdout while it is imported
        checks = checkup.run_all(output)
    print(as_json(checks) if form == "json" else as_text(checks))
    if any(check.state == "bad" for check in checks):
        sys.exit(1)


def as_text(checks: list[Check]) -> str:
    """A line a check, and what to do below it."""
    lines: list[str] = []
    for check in checks:
        lines.append(f"{MARKS[check.state]}  {check.name}: {check.detail}")
        lines += [f"      {check.advice}"] if check.advice else []
    return "\n".join(lines)


def as_json(checks: list[Check]) -> str:
    """`ready`, the hooks that would stand down, and every check."""
    import json
    from dataclasses import asdict

    lost = [{"hook": c.hook, "why": c.detail} for c in checks if c.hook]
    ready = all(check.state != "bad" for check in checks)
    answer = {"version": 1, "ready": ready, "stand_down": lost}
    return json.dumps(answer | {"checks": [asdict(c) for c in checks]}, indent=2)
