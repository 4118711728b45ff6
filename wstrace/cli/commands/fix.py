"""`wstrace fix [options] -- vllm serve MODEL ...`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from wstrace.cli import outlet
from wstrace.errors import WstraceError, ended_by

OUT = Annotated[
    Path,
    typer.Option("-o", "--output", help="Folder of the fix; the same one goes on after a cut."),
]
URL = Annotated[
    str | None,
    typer.Option("--url", help="Where the server answers (default: its --host and --port)."),
]
NO_VERIFY = Annotated[
    bool, typer.Option("--no-verify", help="Write the reserve and do not try it (exit 3).")
]
MINUTES = Annotated[
    float,
    typer.Option("--max-minutes", min=0.01, max=10080, help="Most for all of it."),
]
SECONDS = Annotated[
    float,
    typer.Option("--max-seconds", min=1, max=86400, help="Most for the requests, each time."),
]
UNLOCKED = Annotated[
    bool, typer.Option("--allow-unlocked", help="A run that never locks is no reason for 3.")
]
MERGE = Annotated[
    list[Path] | None,
    typer.Option("--merge", metavar="FILE", help="Keep the sites of this older reserve."),
]
COMMAND = Annotated[list[str] | None, typer.Argument(metavar="-- CMD...", show_default=False)]


def command(
    cmd: COMMAND = None,
    output: OUT = Path("wstrace-fix"),
    url: URL = None,
    no_verify: NO_VERIFY = False,
    max_minutes: MINUTES = 60,
    max_seconds: SECONDS = 300,
    allow_unlocked: UNLOCKED = False,
    merge: MERGE = None,
) -> None:
    """Find what escapes on a server, reserve for it, and try it.

    Starts the command with growth allowed, sends the requests that reach the corners, writes
    reserve.yaml and report.html, starts it again with the reserve, sends the same, and judges.

    Exits as the gate does: 0 fixed or nothing to fix, 1 a finding is left, 3 not shown.
    Example: wstrace fix -- vllm serve MODEL --max-model-len 32768
    """
    if not cmd:
        raise WstraceError(
            "No command to fix.", "Write it after `--`: wstrace fix -- vllm serve MODEL"
        )
    from wstrace.cli.fixing.ending import screen
    from wstrace.cli.fixing.loop import Loop
    from wstrace.cli.fixing.target import target_of
    from wstrace.cli.misspelt import refuse_unknown_option
    from wstrace.cli.recorded import require_program
    from wstrace.planning.earlier import Earlier
    from wstrace.recorder.record import make_trace_folder
    from wstrace.reserve.config import load_reserve

    refuse_unknown_option(cmd, "fix")
    require_program(cmd[0])
    earlier = [Earlier(path.name, load_reserve(path)) for path in merge or ()]
    target = target_of(cmd, url)
    target.client()
    fix = Loop(
        cmd,
        make_trace_folder(output),
        target,
        outlet.say,
        verify=not no_verify,
        max_minutes=max_minutes,
        max_seconds=max_seconds,
        allow_unlocked=allow_unlocked,
        earlier=earlier,
    )
    with _ended_by_signals(fix.serving.interrupt):
        result = fix.run()
    typer.echo("\n".join(screen(result, output, cmd)))
    raise typer.Exit(result.exit_code)


@contextmanager
def _ended_by_signals(interrupt: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end the server too, which has a group of its own; a second
    one while it ends kills it."""

    def leave(number: int, _: object) -> None:
        outlet.say_in_a_handler(
            "wstrace: ending the server; the same command goes on from what was done."
        )
        interrupt()
        raise SystemExit(ended_by(number))

    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
