"""The HTML report: one self-contained file for one run, or for two side by side."""

from __future__ import annotations

from collections.abc import Sequence

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.html.pair import render_pair
from wstrace.report.html.single import render_single


def render(runs: Sequence[AnalysedRun]) -> str:
    """The report of one run, or of two (old and new) compared.

    Raises ValueError for any other number.
    """
    match list(runs):
        case [run]:
            return render_single(run)
        case [old, new]:
            return render_pair(old, new)
    raise ValueError("a report shows one run or two")
