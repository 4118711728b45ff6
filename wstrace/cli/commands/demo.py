"""`wstrace demo`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from wstrace.errors import FOUND, WstraceError, with_stop
from wstrace.files import make_folder

OUT = Annotated[
    Path | None, typer.Option("-o", "--output", help="Keep logs and traces in this folder.")
]


def command(output: OUT = None) -> None:
    """vLLM on the CPU dies of a locked workspace, and is cured.

    Needs vLLM's CPU engine in this environment (./scripts/demo builds one). Exits 0 when
    every step went as it should, 1 when one did not.
    """
    from rich.text import Text

    from wstrace.cli.demo import require_engine, run_demo
    from wstrace.report.console import plain_console

    require_engine()
    folder = output or Path(tempfile.mkdtemp(prefix="wstrace-demo-"))
    make_folder(folder)
    console = plain_console()
    try:
        failed = run_demo(folder, console)
    except WstraceError as error:  # a server that does not start: its log's end is the hint
        console.print(error.hint)
        raise WstraceError(with_stop(error.message), f"The logs are in {folder}.") from error
    console.print(f"Logs, traces and reserve.yaml: {folder}")
    if failed:
        console.print(Text.assemble(("Not as expected:", "red"), f" {'; '.join(failed)}"))
        sys.exit(FOUND)
