"""The columns of a report's sites, held against each other: one in one renderer is told."""

from __future__ import annotations

import json
import re
from typing import Final

from tests.unit.findings.build import MOE, ask, locked, process, session
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.html import render
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.trace.records import PhaseChange

FIELDS: Final = {
    "site": "caller",
    "warm-up": "warmup_bytes",
    "serving": "serving_bytes",
    "arena": "arena_bytes",
    "can need": "bound.bytes",
    "grade": "bound.grade",
}
"""Each column of the text and of Markdown, and where JSON has it."""
OF_THE_PAGE: Final = {"state": "outcome", "calls": "calls"}
"""A page has room for these; text and Markdown say a site's state in its finding."""
BESIDE: Final = {
    "file": "the site's full name, which the page has below the caller's",
    "function": "as `file`",
    "slot": "behind the name",
    "ranks": "below the name, on the page",
    "layers": "below the name, on the page",
    "replayed": "a word in the column of serving",
    "statements": "in the finding, and on the page where the site came from",
    "stopped": "as `statements`",
}
"""What JSON has of a site that is no column, and where people see it."""


def run() -> AnalysedRun:
    served = ask(MOE, 65_536, "serving", 65_536)
    return session(process(*locked(65_536), PhaseChange(phase="serving"), served))


def _header(text: str, between: str) -> list[str]:
    """The words of the first line that begins a table with "site"."""
    lines = (re.split(between, line.strip(" |")) for line in text.splitlines())
    return next(words for words in lines if words[0] == "site")


def test_text_and_markdown_have_the_same_columns() -> None:
    assert _header(render_text(run()), r"\s{2,}") == list(FIELDS)
    assert _header(render_markdown(run()), r"\s*\|\s*") == list(FIELDS)


def test_the_page_has_them_and_its_own() -> None:
    table = render([run()]).partition('<table id="site-table"')[2].partition("</table>")[0]
    heads = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', table)
    assert sorted(heads) == sorted(FIELDS | OF_THE_PAGE)
    row = table.partition("<tbody>")[2].partition("</tr>")[0]
    cells = re.findall(r'<td[^>]* data-label="([^"]+)"', row)
    assert cells == heads[1:]


def test_json_has_each_column_and_nothing_that_people_do_not_see() -> None:
    (site,) = json.loads(render_json(run()))["sites"]
    columns = (FIELDS | OF_THE_PAGE).values()
    nested = {path.partition(".")[0] for path in columns}
    assert set(site) == nested | set(BESIDE)
    assert {path.partition(".")[2] for path in columns} - {""} <= set(site["bound"])
