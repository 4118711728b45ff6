"""The reserve config that the planner makes of a run, for the report."""

from __future__ import annotations

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.planning.from_run import plan_run
from wstrace.planning.plan import Wishes
from wstrace.reserve.schema import ReserveConfig
from wstrace.triage.log_run import LogRun
from wstrace.triage.reserve_plan import plan_report


def planned(run: AnalysedRun) -> tuple[ReserveConfig | None, tuple[str, ...]]:
    """The config and what can still fail in spite of it; (None, ()) where none can be made."""
    try:
        made = plan_report(run.report) if isinstance(run, LogRun) else plan_run(run, Wishes())
    except WstraceError:
        return None, ()
    return made.config, made.can_fail
