"""`wstrace.load`: a recorded run, or a log, for notebooks and programs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun, Verdict, analyse, load_run
from wstrace.runs.run import refuse_no_trace
from wstrace.trace.site_key import SiteKey
from wstrace.triage.log_run import LogRun, is_log, log_run
from wstrace.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    import plotly.graph_objects as go

    from wstrace.bounds.bound import Bound
    from wstrace.planning.plan import ReservePlan, Wishes
    from wstrace.report.html.plotting import Figure

_EXAMPLES: Final = {
    "cover": 'cover={"layer.py:forward": "observed"}',
    "limits": 'limits={"max_model_len": 65536}',
}


def load(path: str | PathLike[str], *, run: str | None = None) -> Trace:
    """The trace folder or file at `path`, analysed; or a log, read as `wstrace triage` does.

    `run` picks one of several runs in a folder; without it the newest is read, and a
    UserWarning says so.

    Raises WstraceError where nothing can be read there.
    """
    if is_log(Path(path)):
        return Trace(log_run(Path(path), run))
    found = load_run(Path(path), run, picks="run=ID")
    refuse_no_trace(found.trace)
    for note in found.trace.notes:
        warnings.warn(f"{path}: {note}", stacklevel=2)
    return Trace(found)


class Trace:
    """A recorded run as tables, bounds, a reserve and figures. Sizes are bytes.

    A log has findings, their bounds and a reserve; its other tables have no row.
    Made by `wstrace.load`. The tables are new DataFrames at each call, with the columns,
    dtypes and units of docs/python-api.md also where they have no row.
    """

    def __init__(self, run: AnalysedRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        run = self._run
        found = plural(len(run.findings), "finding")
        ranks, sites = plural(len(run.workers), "rank"), plural(len(run.sites), "site")
        return f"<wstrace.Trace {run.trace.path}: {self.verdict}, {ranks}, {sites}, {found}>"

    @property
    def run(self) -> str:
        """The run's id."""
        return self._run.trace.run

    @property
    def verdict(self) -> Verdict:
        """`clean`, `findings` (some error was found) or `inconclusive`, as the gate's."""
        return self._run.verdict()

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, as every report has it."""
        from wstrace.report.verdict import sentence

        return sentence(self._run)

    @property
    def inconclusive(self) -> list[str]:
        """Why the trace cannot show that the run was clean; empty when it can."""
        return self._run.inconclusive

    def requests(self) -> pd.DataFrame:
        """A row a recorded request: one that was new by its site, bytes, slot or phase."""
        from wstrace.frames import frames

        return frames.requests(self._run)

    def sites(self) -> pd.DataFrame:
        """A row a call site and slot over all ranks, the largest request first."""
        from wstrace.frames import frames

        return frames.sites(self._run)

    def steps(self) -> pd.DataFrame:
        """A row a step of a worker in which a request was recorded; others left no record."""
        from wstrace.frames import frames

        return frames.steps(self._run)

    def findings(self) -> pd.DataFrame:
        """A row a finding, merged over ranks, the worst first."""
        from wstrace.frames import frames

        return frames.findings(self._run.findings, self.run)

    def bound(self, site: str) -> Bound:
        """What a site can ever ask: `bytes`, `grade`, `formula`, `drivers`, `needs`, `why`.

        `site` is `file:function`, the end of it, or `file:line:function` as vLLM's error has
        it. Over the slots, the largest. Raises WstraceError where no or several sites match.
        """
        known = self._bounds()
        found = {key: bound for key, bound in known.items() if key.is_called(site)}
        if len(found) == 1:
            return next(iter(found.values()))
        seen = sorted(map(str, found or known))
        raise WstraceError(
            f"{'Several sites are' if found else 'No site is'} called {site!r}.",
            f"The trace has: {', '.join(seen) or 'none'}.",
        )

    def _bounds(self) -> dict[SiteKey, Bound]:
        """By site: those that were measured, else those that a log's findings name."""
        of_log = {SiteKey(f.file, f.function): f.bound for f in self._run.findings if f.file}
        named = {key: bound for key, bound in of_log.items() if bound is not None}
        return named | {site.key: site.bound for site in self._run.sites}

    def reserve(
        self,
        *,
        cover: Mapping[str, str | int] | None = None,
        budget: int | str | None = None,
        limits: Mapping[str, int | str] | None = None,
    ) -> ReservePlan:
        """The reserve that `wstrace reserve` would write: `config`, `can_fail`, `payload()`.

        `cover` has a choice for a site (`bound`, `observed`, `p99` or a size), `budget` is the
        most bytes for all slots of a rank, `limits` are what-ifs and numbers that the trace
        lacks. All are read as `--cover`, `--budget` and `--set` are: sizes are bytes or a text
        such as `2GiB`. A log takes `limits` only. Raises WstraceError where one is not
        understood, and where there is nothing to reserve.
        """
        from wstrace.known_sites.given import PYTHON, Giver, settings
        from wstrace.planning.from_run import plan_run
        from wstrace.planning.plan import Wishes, refuse_empty_reserve
        from wstrace.units import as_text, parse_bytes

        wishes = Wishes(
            cover={as_text(site): as_text(choice) for site, choice in _items("cover", cover)},
            budget=None if budget is None else parse_bytes(as_text(budget)),
            limits=settings(_items("limits", limits), Giver("limits", _EXAMPLES["limits"])),
            caller=PYTHON,
        )
        if isinstance(self._run, LogRun):
            return _plan_log(self._run, wishes)
        fresh = analyse(self._run.trace)  # a plan completes the workers' limits
        made = plan_run(fresh, wishes)
        refuse_empty_reserve(made, PYTHON)
        return made

    @property
    def figures(self) -> tuple[str, ...]:
        """The names that `figure` takes for this run."""
        return tuple(self._figures)

    @cached_property
    def _figures(self) -> dict[str, Figure]:
        from wstrace.report.html.charts import charts, drawn
        from wstrace.report.html.planned import planned

        of_log = isinstance(self._run, LogRun)
        fresh = self._run if of_log else analyse(self._run.trace)
        return drawn(charts(self._run, planned(fresh)[0]))

    def figure(self, name: str, *, theme: Literal["light", "dark"] = "light") -> go.Figure:
        """A chart of the HTML report by its name in `figures`, as a plotly figure.

        `timeline` and `driver` are the first of each. Raises WstraceError for another name.
        """
        from wstrace.report.html.plotting import resolved

        spec = self._figures.get(name) or self._figures.get(f"{name}-0")
        if spec is None:
            raise WstraceError(
                f"No figure is called {name!r}.",
                f"This run has: {', '.join(self.figures) or 'none'}.",
            )
        return resolved(spec, theme)


def _items(name: str, given: object) -> Iterable[tuple[object, object]]:
    """What the argument `name` has. Raises WstraceError for what is no mapping."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise WstraceError(
            f"{name} is no mapping, but {type(given).__name__}.",
            f"For example: {_EXAMPLES[name]}",
        )
    return given.items()


def _plan_log(run: LogRun, wishes: Wishes) -> ReservePlan:
    """The reserve that a log calls for, read again with the numbers that it lacks."""
    from wstrace.known_sites.given import numbers_of, words_of
    from wstrace.triage.diagnose.numbers import Given, refuse_unknown
    from wstrace.triage.reserve_plan import plan_report

    if wishes.cover or wishes.budget is not None:
        raise WstraceError(
            "A log says too little for cover= and budget=.", "Record a trace: wstrace run."
        )
    told = wishes.limits or {}
    given = Given(numbers_of(told), option="limits", words=words_of(told))
    refuse_unknown(given)
    return plan_report(log_run(run.trace.path, given=given).report, wishes.caller)
