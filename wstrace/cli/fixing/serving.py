"""One server of a fix: started with the recorder, asked what reaches the corners, ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wstrace.cli import recorded
from wstrace.cli.fixing.progress import Served
from wstrace.cli.fixing.target import Target
from wstrace.errors import INCONCLUSIVE, WstraceError, shell_code, with_stop
from wstrace.exercise.client import Client
from wstrace.exercise.corners import FIXED, Corner, by_drivers, corners_within
from wstrace.exercise.send import FIRST_ANSWER_SECONDS, Outcome, Sent, exercise
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.recorder.record import environment, make_trace_folder, new_run_id
from wstrace.recorder.settings import spellings
from wstrace.server_process import ServerProcess, last_error

if TYPE_CHECKING:
    import subprocess

    from wstrace.recorder.settings import GrowthPolicy

ENGINE_STOP_SECONDS: Final = 60.0  # a large engine takes long to let go of its memory
DEATH_SECONDS: Final = 2.0  # from the last answer of a dying server to its end
MOST_AT_ONCE: Final = 1024
WIDEST_UNKNOWN: Final = 24


class OutOfTimeError(Exception):
    """--max-minutes are over; what was done stands in the state file."""


@dataclass
class CommandServer(ServerProcess):
    """The user's command in a process group of its own, which ends with this process."""

    argv: Sequence[str]
    log: Path
    client: Client
    env: Mapping[str, str]
    longest_seconds: float
    on_wait: Callable[[float], None] | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    dies_with_parent: bool = field(default=True, init=False)

    @property
    def command(self) -> Sequence[str]:
        """The command line as it was given."""
        return self.argv

    def healthy(self) -> bool:
        """Whether /health is 200."""
        return self.client.healthy()


@dataclass
class Serving:
    """What the servers of a fix share. `tell` is called with each line of progress, `left`
    gives the seconds until `--max-minutes` are over, `seconds` is the most for asking."""

    cmd: list[str]
    folder: Path
    target: Target
    seconds: float
    tell: Callable[[str], None]
    left: Callable[[], float]
    engine: CommandServer | None = None

    def interrupt(self) -> None:
        """End the server now, so that nobody waits for its answers."""
        process = self.engine.process if self.engine else None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)

    def serve(self, name: str, growth: GrowthPolicy, reserve: Path | None) -> Served:
        """Start, ask, end. The trace lies in the folder `name`, the server's output beside it.

        Raises WstraceError for a server that never came up, with exit code 3 where it left a
        trace of a worker, and OutOfTimeError.
        """
        trace, run = make_trace_folder(self.folder / name), new_run_id()
        values = environment(trace, run, on_growth=growth, reserve=reserve)
        engine = CommandServer(
            self.cmd,
            self.folder / f"{name}.log",
            self.target.client(),
            {**_unguarded(), **recorded.plugins(), **values},
            self.left(),
            lambda seconds: self.tell(f"... starting for {seconds:.0f} s ({engine.log})"),
        )
        self.engine = engine
        self.target.refuse_taken()
        started = recorded.begin(trace, run, self.cmd, growth, reserve)
        came_up, outcome, code = "", None, 0
        try:
            engine.start()
            came_up = self._came_up(engine)
            if not came_up:
                self.tell("ready; sending the requests that reach the corners")
                outcome = self._asked(engine, trace, run)
        finally:
            code = _end(engine)
            living = recorded.left_behind(run)
            with suppress(OSError):
                recorded.finish(trace, started, code, living)
        if outcome is not None:
            return outcome
        return self._never_up(engine, trace, run, came_up)

    def _came_up(self, engine: CommandServer) -> str:
        """Empty once it is ready, else why it never was."""
        try:
            engine.wait_ready()
        except WstraceError as error:
            if self.left() <= 0:
                raise OutOfTimeError from None
            return error.message
        return ""

    def _never_up(self, engine: CommandServer, trace: Path, run: str, why: str) -> Served:
        """A finding in its start is judged as any other; else there is nothing to judge."""
        analysed = load_run(trace, run)
        if analysed.verdict() == "findings":
            return Served(run, why)
        because = _because(analysed) or last_error(engine.said())
        told = with_stop(f"Before it was ready {why}" + (f": {because}" if because else ""))
        do = "Mend what stopped it; what it said is in"
        if not because and not analysed.workers:
            do = f"Is it a server at {self.target.url} (--url)? What it said is in"
        error = WstraceError(told, f"{do} {engine.log}.")
        if analysed.workers or (engine.exit_code or 0) < 0:
            error.exit_code = INCONCLUSIVE
        raise error

    def _asked(self, engine: CommandServer, trace: Path, run: str) -> Served:
        """How the asking went, also of a server that ended before the first request."""
        try:
            outcome = self._ask(engine, trace, run)
        except WstraceError:
            if (ending := engine.ended_within(DEATH_SECONDS)) is None:
                raise
            return Served(run, f"the server {ending} before it was asked")
        return Served(run, outcome.sentence, outcome.exit_code == 0)

    def _ask(self, engine: CommandServer, trace: Path, run: str) -> Outcome:
        """The corners, and then those of what drives the sites that were seen."""
        client, began = engine.client, time.monotonic()

        def send(corners: list[Corner]) -> Outcome:
            left = min(self.left(), self.seconds - (time.monotonic() - began))
            return exercise(client, model, corners, left, told=self._told)

        model = client.model(None, FIRST_ANSWER_SECONDS)
        widest = _most_requests(load_run(trace, run))
        most = FIXED + min(widest, MOST_AT_ONCE)
        outcome = send(corners_within(model.max_model_len, most)[0])
        driven = by_drivers(_drivers(load_run(trace, run)), model.max_model_len, widest)
        if outcome.exit_code == 0 and driven:
            more = send(driven)
            outcome = replace(more, sent=(*outcome.sent, *more.sent))
        if self.left() <= 0:
            raise OutOfTimeError
        return outcome

    def _told(self, sent: Sent) -> None:
        self.tell(f"  {sent.corner.name}: {sent.statuses}")


def _unguarded() -> dict[str, str]:
    """The environment without a production guard: it records nothing, and hides escapes."""
    guard = spellings("GUARD")  # GUARD_MAX and GUARD_FILE too
    return {name: text for name, text in os.environ.items() if not name.startswith(guard)}


def _because(run: AnalysedRun) -> str:
    """`warm-up ended with ...` or the refused reserve, where the trace tells why."""
    refused = [why for why in run.inconclusive if why.startswith("a reserve was refused")]
    started = [f.detail for f in run.findings if f.row.lacks == "start"]
    return next(iter(refused or started), "")


def _most_requests(run: AnalysedRun) -> int:
    """The widest batch that the config allows."""
    told = [worker.limits.get("max_num_seqs") for worker in run.workers]
    return max((number for number in told if isinstance(number, int)), default=WIDEST_UNKNOWN)


def _drivers(run: AnalysedRun) -> set[str]:
    """What the requests of all sites grow with."""
    return {name for site in run.sites for name in site.bound.drivers}


def _end(engine: CommandServer) -> int:
    """SIGINT, and SIGKILL for what is left; the exit code as a shell has it."""
    code = engine.stop(ENGINE_STOP_SECONDS)
    return 0 if code is None else shell_code(code)
