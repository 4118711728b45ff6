"""The pages beside the report of a trace, as pictures: an audit's and a log's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Page, serious_violations
from tests.unit.audit.conftest import package
from tests.unit.audit.test_roles_and_matches import GATED, MOST, layer, request
from wstrace.audit.whole import audit
from wstrace.findings.analysed_run import load_run
from wstrace.report.html import render
from wstrace.report.html.audit_page import render_audit
from wstrace.triage.log_run import log_run

ROOT = Path(__file__).resolve().parents[2]
LONG = "vllm/" + "a_folder_with_a_long_name/" * 4
__all__ = ["package"]

Write = Callable[[str], Page]


@pytest.fixture
def pages(package: Callable[..., Path], write: Write) -> dict[str, Callable[[], Page]]:
    """An audit with an open and a closed group and a long line; the page of a pasted log."""

    def audited() -> Page:
        wide = layer(MOST).replace("return current", f"# {LONG * 3}\n        return current")
        root = package(bad=wide, gated=GATED, good=layer(MOST, profiled=request(MOST)))
        return write(render_audit(audit(root, "1.2.3"), root))

    def logged() -> Page:
        return write(render([log_run(ROOT / "tests" / "data" / "docs" / "pasted.log")]))

    return {"audit": audited, "log": logged}


@pytest.mark.parametrize("kind", ["audit", "log"])
@pytest.mark.parametrize("width", [420, 1400])
def test_nothing_runs_off_the_edge(
    pages: dict[str, Callable[[], Page]], kind: str, width: int
) -> None:
    page = pages[kind]()
    page.resize(width)
    page.open(drawn=False)
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.run("return document.documentElement.scrollWidth") <= width
    off = page.run(
        "return Array.from(document.querySelectorAll('main *')).filter(e =>"
        " !e.closest('pre, .hidden') && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 120))"
    )
    assert off == []


@pytest.mark.parametrize("kind", ["audit", "log"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_in_both_themes(
    pages: dict[str, Callable[[], Page]], kind: str, theme: str
) -> None:
    page = pages[kind]()
    page.media(prefers_color_scheme=theme)
    page.open(drawn=False)
    assert serious_violations(page) == []
    assert page.console() == []


def test_the_header_does_not_lie_on_the_title(pages: dict[str, Callable[[], Page]]) -> None:
    for make in pages.values():
        page = make().open(drawn=False)
        below, title = page.run(
            "return [document.querySelector('.top').getBoundingClientRect().bottom,"
            " document.querySelector('h1').getBoundingClientRect().top]"
        )
        assert title >= below + 16


@pytest.mark.parametrize("width", [420, 768, 1400])
def test_no_state_and_no_option_is_broken_within_a_word(write: Write, width: int) -> None:
    """`escape|d` in a column of five characters, `-|-host` in a command."""
    page = write(render([load_run(ROOT / "sample_traces" / "h200-vllm-0.26.0-dsv4-crash")]))
    page.resize(width)
    page.open()
    broken = page.run(
        "const lines = e => { const r = document.createRange(); r.selectNodeContents(e);"
        " return new Set(Array.from(r.getClientRects(), b => Math.round(b.top))).size; };"
        "return Array.from(document.querySelectorAll('.state, .command .word'))"
        ".filter(e => e.offsetParent && !/[ {]/.test(e.textContent) && lines(e) > 1"
        " && e.textContent.length < 30).map(e => e.textContent)"
    )
    assert broken == []


def test_the_legend_of_memory_is_not_cut(write: Write) -> None:
    """At 420 px: a part's reason stands in the table, not in the legend."""
    page = write(render([load_run(ROOT / "sample_traces" / "h200x2-vllm-0.21.0-tp-grow")]))
    page.resize(420)
    page.open()
    cut = page.run(
        "const figure = document.querySelector('[data-figure=memory]');"
        "const edge = figure.getBoundingClientRect().right;"
        "return Array.from(figure.querySelectorAll('.legendtext'))"
        ".filter(e => e.getBoundingClientRect().right > edge).map(e => e.textContent)"
    )
    assert cut == []
