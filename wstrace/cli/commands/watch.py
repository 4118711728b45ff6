"""`wstrace watch DIR`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wstrace.cli import outlet
from wstrace.cli.sigterm import heed_sigterm
from wstrace.errors import WstraceError, ended_by, with_stop

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from wstrace.trace.run_file import RunFile

MAX_LINE = 600  # characters of a sentence
FOLDER = Annotated[Path | None, typer.Argument(metavar="DIR", help="Trace folder of the run.")]
RUN = Annotated[str | None, typer.Option("--run", help="Which run of the folder.")]
ONCE = Annotated[bool, typer.Option("--once", help="Print the state now, and stop.")]
EVERY = Annotated[
    float, typer.Option("--interval", min=0.1, max=60, help="Seconds between two reads.")
]
METRICS = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Serve Prometheus metrics at this address, such as :9464."
    ),
]
GUARD = Annotated[
    Path | None,
    typer.Option("--guard-file", help="With --metrics: what WSTRACE_GUARD_FILE names."),
]


def command(
    folder: FOLDER = None,
    run: RUN = None,
    once: ONCE = False,
    interval: EVERY = 1.0,
    metrics: METRICS = None,
    guard_file: GUARD = None,
) -> None:
    """A run while it happens: phase, arena, growths and escapes.

    Reads what was appended since it last looked, and stops when the run ends. Piped, it
    prints a line an event. With --metrics it serves until it is stopped, and waits for a
    folder that is not there yet. Example: wstrace watch wstrace-20260516T101500Z-1a2b3c4d
    """
    if metrics is not None:
        _serve(folder, run, guard_file, metrics, interval)
        return
    if guard_file is not None:
        raise WstraceError("--guard-file is for --metrics.", "Give --metrics :9464 as well.")
    if folder is None:
        raise WstraceError("No trace folder.", "Give the folder that `wstrace run` named.")
    _show(folder, run, once, interval)


def _serve(
    folder: Path | None, run: str | None, guard_file: Path | None, address: str, every: float
) -> None:
    """Serve metrics until SIGINT (130) or SIGTERM (143)."""
    from wstrace.cli.watch.metrics import MetricsServer

    if folder is None and guard_file is None:
        raise WstraceError(
            "Nothing to serve metrics of.", "Give a trace folder, or --guard-file FILE."
        )
    heed_sigterm()
    server = MetricsServer(folder, run, guard_file, address)
    try:
        server.refresh()
        print(f"wstrace: metrics at port {server.port}, path /metrics", flush=True)
        for line in server.follow(every):
            outlet.say(f"wstrace: {line}")
    except KeyboardInterrupt:
        raise typer.Exit(ended_by(signal.SIGINT)) from None


def _show(folder: Path, run: str | None, once: bool, interval: float) -> None:
    from wstrace.file_names import trace_file_kind
    from wstrace.report.console import plain_console
    from wstrace.trace.run_file import find_run
    from wstrace.trace.unread import (
        end_alone,
        is_other_folder,
        missing,
        no_trace,
        traces_below,
    )

    if folder.is_file() and trace_file_kind(folder.name) == "end":
        raise end_alone(folder)
    if folder.is_file():
        raise WstraceError(
            f"{folder} is a file: a run is followed by its folder.",
            "Give the folder that `wstrace run` named; a log: wstrace triage LOG.",
        )
    if not folder.is_dir():
        raise missing(folder)
    if is_other_folder(folder) and traces_below(folder):
        raise no_trace(folder)  # else a run may begin there
    for doubt in find_run(folder, run)[1]:
        outlet.say(f"wstrace: {with_stop(doubt)}")
    watch = _Watch(folder, run)
    watch.read()
    console = plain_console()
    if once:
        console.print(watch.picture())
        watch.print_grounds()
        return
    try:
        _follow(watch, console, interval)
        watch.print_grounds()
    except KeyboardInterrupt:
        raise typer.Exit(ended_by(signal.SIGINT)) from None


class _Watch:
    """The folder's files, and what was read of them."""

    def __init__(self, folder: Path, run: str | None) -> None:
        from wstrace.cli.watch.state import RunState
        from wstrace.cli.watch.tail import FolderTail

        self.folder = folder
        self.tail = FolderTail(folder, run)
        self.state = RunState()
        self.meta: RunFile | None = None

    def read(self) -> None:
        """Take in what is new."""
        from wstrace.cli.watch.tail import read_meta
        from wstrace.trace.run_file import find_run

        try:
            self.tail.meta = read_meta(self.folder)
            for path, record in self.tail.read():
                self.state.apply(path, record)
            self.meta = find_run(self.folder, self.tail.followed())[0]
        except OSError as error:
            raise WstraceError(
                f"Cannot read {error.filename or self.folder}: {error.strerror}.",
                "Check the folder's permissions.",
            ) from error

    def picture(self, events: int = 6) -> RenderableType:
        from wstrace.cli.watch.screen import picture

        return picture(self.state, self.tail.followed(), self.meta, self.folder, events)

    def print_grounds(self) -> None:
        """The verdict of a run that has ended, and of any run what it rests on."""
        from wstrace.findings.analysed_run import load_run
        from wstrace.report.safe import clean
        from wstrace.report.verdict import sentence

        followed = self.tail.followed()
        try:
            run = load_run(self.folder, followed)
        except WstraceError:
            return
        lines = [sentence(run)] if self.ended() else []
        lines += [f"inconclusive: {reason}" for reason in run.inconclusive]
        lines += [f"rests on: {line}" for line in run.rests_on.lines()]
        print("\n".join(clean(line, MAX_LINE) for line in lines))

    def ended(self) -> bool:
        """True when run.json of the followed run has its end; without one, when all its workers
        wrote theirs."""
        if self.meta is not None:
            return self.meta.over
        workers = [p for p in self.state.of_run(self.tail.followed()) if p.worker is not None]
        return bool(workers) and all(worker.ended for worker in workers)


def _follow(watch: _Watch, console: Console, interval: float) -> None:
    """A live picture on a terminal, a line an event elsewhere, until the run ends."""
    if console.is_terminal:
        from rich.live import Live

        with Live(watch.picture(), console=console, auto_refresh=False) as live:
            while not watch.ended():
                time.sleep(interval)
                watch.read()
                live.update(watch.picture(), refresh=True)
        return
    told = 0
    while True:
        for line in watch.state.news(told, watch.tail.followed()):
            print(line, flush=True)
        told = watch.state.told
        if watch.ended():
            console.print(watch.picture(events=0))
            return
        time.sleep(interval)
        watch.read()
