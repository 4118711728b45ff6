"""`wstrace doctor`."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wstrace.cli.outlet import Format
from wstrace.errors import FOUND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstrace.cli.checkup import Check

OUT = Annotated[Path, typer.Option("-o", "--output", help="Where traces would go.")]
RAY = Annotated[
    bool, typer.Option("--ray", help="Every node of the Ray cluster too, asked on the node.")
]
FORMAT = Annotated[Format, typer.Option("--format", help="text or json.")]
MARKS = {"ok": "ok  ", "warn": "note", "bad": "FAIL"}


def command(output: OUT = Path(), form: FORMAT = "text", ray: RAY = False) -> None:
    """Would a run be recorded here: plugin, vLLM, hooks, folder.

    Exits 0 when a run would be recorded, 1 when something is in the way: a hook that would
    stand down too, since the gate is then inconclusive.
    """
    from wstrace.cli import checkup
    from wstrace.report.verdict import AGAIN, FIX

    checks = []
    every = checkup.run_all(output)
    if ray:
        from wstrace.cli import nodes

        every = chain(every, nodes.run_all(output))
    for check in told(every):
        checks.append(check)
        if form == "text":
            print(as_text([check]), flush=True)
    wrong = any(check.state == "bad" for check in checks)
    if form == "json":
        print(as_json(checks))
    elif not wrong:
        print(f"next: {FIX}   (a server; a script: {AGAIN})")
    if wrong:
        sys.exit(FOUND)


def told(checks: Iterator[Check]) -> Iterator[Check]:
    """Each check as it is done. Between them vLLM is imported: it takes many seconds and logs
    as it comes, so a terminal is told that something goes on, and the logs go nowhere."""
    from wstrace.cli import outlet

    waits = sys.stderr.isatty()
    while True:
        if waits:
            print("looking at vLLM ...", end="\r", file=sys.stderr, flush=True)
        with outlet.quiet():
            check = next(checks, None)
        if waits:
            print(" " * 20, end="\r", file=sys.stderr, flush=True)
        if check is None:
            return
        yield check


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
