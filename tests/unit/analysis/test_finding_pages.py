"""Each finding has a page: what it means, how to see it, what to do, a real example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wstrace.analysis.finding import TITLES

PAGES = Path(__file__).parents[3] / "docs" / "findings"
SECTIONS = ["What it means", "Example", "What to look at", "What to do", "Related"]


@pytest.mark.parametrize("code", TITLES)
def test_a_code_has_its_page(code: str) -> None:
    text = (PAGES / f"{code}.md").read_text()
    assert text.startswith(f"# {code}: {TITLES[code]}\n")
    assert "**Severity:**" in text
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS


def test_there_is_no_page_without_a_code() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(TITLES)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text()):
        assert (page.parent / target).exists(), target
