"""The pictures of docs/reading-a-report.md, made by `scripts/browser-tests --images`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Page
from tests.unit.report_html import runs

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ("timeline", "warmup", "drivers", "memory")


def test_pictures_are_made(show: Callable[..., Page]) -> None:
    if not os.environ.get("WSTRACE_IMAGES"):
        pytest.skip("only scripts/browser-tests --images renews the pictures")
    page = show(runs.crashed())
    page.resize(980)
    page.open()
    page.picture(".verdict", "report-verdict.png")
    page.picture("#fix", "report-fix.png")
    page.picture("#findings .card", "report-finding.png")
    for name in SECTIONS:
        page.picture(f"#{name}", f"report-{name}.png")
    page = show(runs.grown())
    page.resize(980)
    page.media(prefers_color_scheme="dark")
    page.open()
    page.picture("#timeline", "report-timeline-grow-dark.png")
    page = show(runs.crashed())
    page.resize(380)
    page.open()
    page.picture(".verdict", "report-narrow.png")
    page = show(runs.reserved(), runs.crashed())
    page.resize(980)
    page.open()
    page.picture("#changes", "report-two-runs.png")


def test_every_picture_of_the_docs_exists_and_is_small() -> None:
    text = (DOCS / "reading-a-report.md").read_text(encoding="utf-8")
    shown = [part.split(")")[0] for part in text.split("](images/")[1:]]
    assert shown
    for name in shown:
        assert 0 < (DOCS / "images" / name).stat().st_size < 150_000
    kept = {path.name for path in (DOCS / "images").glob("report-*.png")}
    assert kept == set(shown)
