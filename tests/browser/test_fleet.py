"""The site of a fleet, in Chromium: every page, its links, wide and narrow, 512 ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser.conftest import Page
from tests.commands import wstrace
from tools.fleet.planted import Plan, write_run

RUNS = (
    Plan(run="20260528T000000Z-0000000a", fault="death", model="fleet-small"),
    Plan(run="20260528T000001Z-0000000b", fault="risk", model="fleet-small"),
    Plan(run="20260528T000002Z-0000000c", ranks=2, model="long-" + "x" * 80),
    Plan(run="20260528T000003Z-0000000d", fault="small rank", ranks=512, hosts=64, dp=2),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of four runs, one of them of 512 ranks."""
    folder = tmp_path_factory.mktemp("fleet")
    for plan in RUNS:
        write_run(plan, folder / "traces" / plan.run)
    words = ("--no-cache", "--jobs", "1", "-o", str(folder / "site"))
    told = wstrace("fleet", str(folder / "traces"), *words)
    assert told.returncode == 0, told.stderr
    return folder / "site"


def links(page: Page) -> set[str]:
    """Where a page's links lead, without those into itself."""
    found = page.run("return Array.from(document.links).map(a => a.href.split('#')[0])")
    return {str(href) for href in found} - {page.path.as_uri()}


def pages(site: Path) -> list[Path]:
    return [site / "index.html", *sorted((site / "models").iterdir())]


def test_every_page_and_report_is_reached_from_the_index(
    driver: webdriver.Chrome, site: Path
) -> None:
    waiting, reached = [(site / "index.html").as_uri()], set()
    while waiting:
        address = waiting.pop()
        if address in reached or not address.startswith("file:"):
            continue
        reached.add(address)
        path = Path(address.removeprefix("file://"))
        assert path.is_file(), address
        if path.parent.name != "runs":
            waiting += links(Page(driver, path).open(drawn=False))
    every = {path.resolve().as_uri() for path in site.rglob("*.html")}
    assert reached == every
    assert len(every) == 1 + 3 + len(RUNS)


@pytest.mark.parametrize("width", [420, 1400])
def test_nothing_runs_off_the_edge_and_the_console_is_silent(
    driver: webdriver.Chrome, site: Path, width: int
) -> None:
    for number, path in enumerate(pages(site)):
        page = Page(driver, path)
        page.resize(width)
        page.open(drawn=False)
        wide = page.run("return document.documentElement.scrollWidth")
        assert wide <= width, (path.name, wide)
        assert page.console() == []
        assert all(url.startswith(("file:", "data:")) for url in page.requests())
        if number < 2 and os.environ.get("WSTRACE_IMAGES"):
            page.picture("body", f"fleet-{number}-{width}.png", 0)


@pytest.mark.parametrize("width", [420, 1400])
def test_the_grid_of_512_ranks_can_be_read(
    driver: webdriver.Chrome, site: Path, width: int
) -> None:
    (path,) = (site / "runs").glob(f"{RUNS[3].run}-*.html")
    page = Page(driver, path)
    page.resize(width)
    page.open()
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.console() == []
    text = page.run("return document.body.innerText")
    assert "512 ranks" in text
    page.picture("body", f"fleet-ranks-{width}.png", 0)
