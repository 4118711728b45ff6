"""`wstrace doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

OUT = Annotated[Path, typer.Option("-o", "--output", help="Where traces would go.")]


def command(output: OUT = Path()) -> None:
    """Is the recorder ready here: plugin, vLLM version, every hook, the trace folder.

    Exits 0 when a run would be recorded, 1 when something is in the way.
    """
    from wstrace.cli import checkup

    checks = checkup.run_all(output)
    for check in checks:
        mark = {"ok": "ok  ", "warn": "note", "bad": "FAIL"}[check.state]
        print(f"{mark}  {check.name}: {check.detail}")
        if check.advice:
            print(f"      {check.advice}")
    if any(check.state == "bad" for check in checks):
        sys.exit(1)
