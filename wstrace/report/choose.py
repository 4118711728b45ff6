"""Reporters by name; the extension of `-o` chooses one where no name is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.formats import by_extension

Reporter = Callable[[Sequence[AnalysedRun]], str]
FORMATS = ("text", "json", "markdown", "html")


def format_of(target: Path | None, wanted: str | None) -> str:
    """The format: what was asked for, else by the extension of `target`, else text."""
    if wanted is not None:
        if wanted not in FORMATS:
            raise WstraceError(
                f"No such report format: {wanted}.", f"Choose one of {', '.join(FORMATS)}."
            )
        return wanted
    if target is None:
        return "text"
    found = by_extension(target, FORMATS)
    if found is None:
        raise WstraceError(
            f"Cannot tell the report's format from {target.name!r}.",
            f"Name it report.html, .json, .md or .txt, or add --format {'|'.join(FORMATS)}.",
        )
    return found


def reporter(name: str) -> Reporter:
    """The function that renders one run (html: one or two) as text."""
    if name == "html":
        from wstrace.report.html import render

        return render
    return lambda runs: _single(name)(runs[0])


def _single(name: str) -> Callable[[AnalysedRun], str]:
    if name == "json":
        from wstrace.report.json import render_json

        return render_json
    if name == "markdown":
        from wstrace.report.markdown import render_markdown

        return render_markdown
    from wstrace.report.text import render_text

    return render_text


def write_report(runs: Sequence[AnalysedRun], target: Path, wanted: str | None = None) -> None:
    """Render and write a report, whole or not at all."""
    from wstrace.files import write_output

    write_output(reporter(format_of(target, wanted))(runs), target)
