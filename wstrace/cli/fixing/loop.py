"""The loop: growth allowed, asked, reserved, served again with the reserve, asked, judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from wstrace.cli import recorded
from wstrace.cli.fixing.progress import FixState, Served, read_state, write_state
from wstrace.cli.fixing.serving import OutOfTimeError, Serving
from wstrace.cli.fixing.target import Target
from wstrace.errors import INCONCLUSIVE, WstraceError
from wstrace.files import write_output
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.gate.judge import Judgement, Policy, judge
from wstrace.planning.from_run import plan_runs
from wstrace.planning.plan import ReservePlan, Wishes, refuse_empty_reserve
from wstrace.report.choose import write_report
from wstrace.report.verdict import to_mend
from wstrace.reserve.config import dumps
from wstrace.safe_texts.redact import redact_argv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstrace.planning.earlier import Earlier

GROWN: Final = "grown"
VERIFIED: Final = "verified"
RESERVE: Final = "reserve.yaml"
REPORT: Final = "report.html"


@dataclass
class Result:
    """What a fix found: the run with growth allowed, and the reserve for it (None: there is
    nothing that one helps against). `judgement` decides the exit code: it is of the server with
    the reserve where there was one, else of the first."""

    grown: AnalysedRun
    asked: Served
    judgement: Judgement
    plan: ReservePlan | None = None
    verified: Served | None = None

    @property
    def exit_code(self) -> int:
        """The gate's; a reserve that was not tried shows nothing."""
        if self.plan is not None and self.verified is None:
            return INCONCLUSIVE
        last = self.verified or self.asked
        if self.judgement.exit_code == 0 and not last.answered:
            return INCONCLUSIVE
        return self.judgement.exit_code


@dataclass
class Loop:
    """One fix in `folder`. `tell` takes each line of progress, with the seconds before it."""

    cmd: list[str]
    folder: Path
    target: Target
    tell: Callable[[str], None]
    verify: bool = True
    max_minutes: float = 60.0
    max_seconds: float = 300.0
    allow_unlocked: bool = False
    earlier: Sequence[Earlier] = ()
    started: float = field(default_factory=time.monotonic)
    serving: Serving = field(init=False)

    def __post_init__(self) -> None:
        self.serving = Serving(
            self.cmd, self.folder, self.target, self.max_seconds, self._say, self._left
        )

    def run(self) -> Result:
        """Do what is not done yet.

        Raises WstraceError for a command that never serves (exit code 2, or 3 where it left a
        trace), and where --max-minutes are over (3).
        """
        command = redact_argv(self.cmd)
        made_with = recorded.versions()
        state = self._with_traces(read_state(self.folder, command, made_with))
        if state.grown is not None:
            self._say(f"going on where the last one was cut: {state.grown.told}")
        try:
            return self._run(state)
        except OutOfTimeError:
            error = WstraceError(
                f"Time was up after {self.max_minutes:g} minutes (--max-minutes).",
                f"The same command with -o {self.folder} goes on from what was done.",
            )
            error.exit_code = INCONCLUSIVE
            raise error from None

    def _with_traces(self, state: FixState) -> FixState:
        """Without what was done once but left no trace any more."""
        for name, served in ((GROWN, state.grown), (VERIFIED, state.verified)):
            if served is not None and not (self.folder / name).is_dir():
                return msgspec.structs.replace(state, grown=None, verified=None)
        return state

    def _run(self, state: FixState) -> Result:
        if state.grown is None:
            self._say("starting with growth allowed")
            grown = self.serving.serve(GROWN, "grow", None)
            state = self._keep(msgspec.structs.replace(state, grown=grown))
        assert state.grown is not None
        self._say(f"with growth allowed: {state.grown.told}")
        run = self._load(GROWN, state.grown)
        write_report([run], self.folder / REPORT)
        if not any(finding.reservable for finding in to_mend(run)):
            self._keep(msgspec.structs.replace(state, finished=True))
            return Result(run, state.grown, self._judge(run))
        return self._with_reserve(state, run, state.grown)

    def _with_reserve(self, state: FixState, run: AnalysedRun, grown: Served) -> Result:
        # a plan may complete the limits of the run that it is made from
        made = plan_runs([self._load(GROWN, grown)], Wishes(), self.earlier)
        refuse_empty_reserve(made)
        reserve = self.folder / RESERVE
        write_output(dumps(made.config), reserve)
        self._say(f"wrote {reserve}")
        if not self.verify:
            self._keep(msgspec.structs.replace(state, finished=True))
            return Result(run, grown, self._judge(run), made)
        if state.verified is None:
            self._say("starting again with the reserve")
            verified = self.serving.serve(VERIFIED, "raise", reserve)
            state = self._keep(msgspec.structs.replace(state, verified=verified))
        assert state.verified is not None
        self._say(f"with the reserve: {state.verified.told}")
        judgement = self._judge(self._load(VERIFIED, state.verified))
        self._keep(msgspec.structs.replace(state, finished=True))
        return Result(run, grown, judgement, made, state.verified)

    def _left(self) -> float:
        return self.max_minutes * 60 - (time.monotonic() - self.started)

    def _say(self, text: str) -> None:
        self.tell(f"[{time.monotonic() - self.started:6.1f} s] {text}")

    def _keep(self, state: FixState) -> FixState:
        write_state(self.folder, state)
        return state

    def _load(self, name: str, served: Served) -> AnalysedRun:
        return load_run(self.folder / name, served.run, allow_unlocked=self.allow_unlocked)

    def _judge(self, run: AnalysedRun) -> Judgement:
        return judge([run], Policy(), datetime.now(UTC).date())
