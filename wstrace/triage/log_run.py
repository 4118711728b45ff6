"""A text as a run: what `gate` and `report` judge and show of a trace, they do of a log.

It has no worker and no site that was measured; its findings are those of the text, one for
all the ranks that share it. A text can show that a run failed, never that it was clean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError
from wstrace.file_names import trace_file_kind
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.runs.run import Run
from wstrace.trace.reader import Trace

# The readers of logs are imported where a log is read: every command of a trace asks whether
# it has one.
if TYPE_CHECKING:
    from wstrace.findings.finding import Finding
    from wstrace.triage.diagnose.numbers import Given
    from wstrace.triage.report import Report

CANNOT_SHOW: Final = "a log can show a failure, not that a run was clean"
_RECORD: Final = b'{"t":'  # how every record of a trace file begins


@dataclass
class LogRun(AnalysedRun):
    """A log with its findings, in the place of an analysed trace."""

    report: Report = field(kw_only=True)

    @cached_property
    def findings(self) -> list[Finding]:
        """The text's findings, merged over ranks, the worst first."""
        return self.report.incidents

    @cached_property
    def inconclusive(self) -> list[str]:
        """A text tells nothing of what it does not say; and what failed beside the arena."""
        beside = (f"not the arena: {r.title} ({r.knob})" for r in self.report.relatives)
        return [CANNOT_SHOW, *beside]

    @property
    def vllm_version(self) -> str | None:
        """The version that the text names, at the worst finding or in its configuration."""
        return self._engine[1]

    @property
    def model(self) -> str | None:
        """The model that the text names in the same place."""
        return self._engine[0]

    @cached_property
    def _engine(self) -> tuple[str | None, str | None]:
        from wstrace.triage.diagnose.numbers import version_of

        logs = (finding.log for finding in self.findings if finding.log)
        found = ((log.model, log.version) for log in logs if log.model or log.version)
        model = self.report.config.get("model")
        own = str(model) if model else None, version_of(self.report.config)
        return next(found, own)


def is_log(path: Path) -> bool:
    """True for a file of text. A folder, an empty file or one with the name of a trace's file
    (its records, its run.json) is a trace."""
    if not path.is_file() or trace_file_kind(path.name) is not None:
        return False
    try:
        with path.open("rb") as file:
            first = file.read(len(_RECORD))
    except OSError:
        return False
    return first not in (b"", _RECORD)


def log_run(path: Path, run: str | None = None, given: Given | None = None) -> LogRun:
    """The findings of one log as a run.

    Raises WstraceError where it cannot be read as text, and where a `run` of it is asked for.
    """
    from wstrace.triage.diagnose.numbers import Given

    if run is not None:
        raise WstraceError(
            f"{path} is a log: it has no run to pick.", "Leave out which run, or give a trace."
        )
    from wstrace.triage.report import read

    report = read([str(path)], given or Given())
    trace = Trace(path, PurePath(path).name, [])
    return LogRun(Run(trace, []), notes=list(report.notes), report=report)
