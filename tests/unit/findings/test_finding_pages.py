"""Each finding has a page: what it means, how to see it, what to do, a real example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wstrace.findings.codes import TITLES

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "findings"
WRITTEN = [code for code in TITLES if (PAGES / f"{code}.md").exists()]
"""What has no page yet is told by test_codes.py, once."""
SECTIONS = ["What it means", "Example", "What to look at", "What to do", "Related"]


@pytest.mark.parametrize("code", WRITTEN)
def test_a_page_has_its_sections(code: str) -> None:
    text = (PAGES / f"{code}.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS


def test_there_is_no_page_without_a_code() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} <= set(TITLES)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text()):
        assert (page.parent / target).exists(), target


def example(page: Path) -> str:
    text = page.read_text()
    return text[text.index("## Example") : text.index("## What to look at")]


@pytest.mark.parametrize("code", WRITTEN)
def test_an_example_is_of_a_real_trace_or_names_the_test_that_made_it(code: str) -> None:
    """Real ones are written, and held to their traces, by scripts/make-docs examples."""
    shown = example(PAGES / f"{code}.md")
    run = re.search(r"<!-- run: wstrace report (\S+) \| only (\w+) -->", shown)
    if run is not None:
        traces = [ROOT / folder / run[1] for folder in ("sample_traces", "tests/data/docs")]
        assert run[2] == code
        assert any((trace / "run.json").is_file() for trace in traces)
        return
    made = re.search(r"^Made by a test, `([\w/]+\.py)::(\w+)`", shown, re.MULTILINE)
    assert made is not None, "neither a real trace nor a test"
    assert f"def {made[2]}(" in (ROOT / made[1]).read_text()
