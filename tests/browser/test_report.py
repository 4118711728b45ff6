"""The report as a person meets it: in Chromium, on a wide and a narrow screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Page, serious_violations
from tests.unit.report_html import runs
from tests.unit.report_html.test_page import HOSTILE, bounded, renamed
from wstrace.findings.analysed_run import AnalysedRun, load_run

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"

Show = Callable[..., Page]
ALL = (
    runs.crashed,
    runs.grown,
    runs.reserved,
    runs.refused_reserve,
    runs.unlocked,
)
TRACES = "return document.querySelector(arguments[0]).querySelectorAll(arguments[1]).length"


def _figure(name: str) -> str:
    return f'[data-figure="{name}"]'


def _column(page: Page, number: int) -> list[str]:
    script = (
        "return Array.from(document.querySelectorAll('#site-table tbody tr'))"
        ".filter(r => !r.hidden).map(r => r.children[arguments[0]].textContent.trim())"
    )
    found: list[str] = page.run(script, number)
    return found


@pytest.mark.parametrize("make", ALL, ids=lambda f: f.__name__)
def test_no_console_message_and_no_request(show: Show, make: Callable[[], AnalysedRun]) -> None:
    page = show(make()).open()
    assert page.console() == []
    assert page.requests() == [page.path.as_uri()]


@pytest.mark.parametrize("make", [runs.cut, runs.empty], ids=lambda f: f.__name__)
def test_runs_without_figures_need_no_plotly(
    show: Show, make: Callable[[], AnalysedRun]
) -> None:
    page = show(make()).open(drawn=False)
    assert page.console() == []
    assert "Inconclusive" in page.run("return document.body.innerText")


def test_figures_are_drawn(show: Show) -> None:
    """Bars and points counted in the SVG: three sites, two bars each; the requests."""
    page = show(runs.crashed()).open()
    assert page.run(TRACES, _figure("sites"), ".barlayer .point path") == 6
    assert page.run(TRACES, _figure("sites"), ".scatterlayer .trace.scatter") == 2
    assert page.run(TRACES, _figure("timeline-0"), ".scatterlayer .trace.scatter") == 5
    assert page.run(TRACES, _figure("timeline-0"), ".scatterlayer .points path") == 7
    assert page.run(TRACES, _figure("timeline-0"), ".shapelayer path") == 5
    assert page.run(TRACES, _figure("driver-0"), ".scatterlayer .points path") == 2
    assert page.run(TRACES, _figure("driver-0"), ".lines path.js-line") == 2  # and the arena
    assert page.run(TRACES, _figure("memory"), ".barlayer .point path") == 6
    text = page.run(f"return document.querySelector('{_figure('timeline-0')}').textContent")
    for label in ("lock 24.00 MiB", "2 graphs captured", "post-lock-warmup", "refused"):
        assert label in text


def test_hover_tells_the_scheduler_state(show: Show) -> None:
    page = show(runs.crashed()).open()
    found = page.run(
        "const gd = document.querySelector('[data-figure=\"timeline-0\"]');"
        "const i = gd.data.findIndex(t => t.name === 'refused');"
        "Plotly.Fx.hover(gd, [{curveNumber: i, pointNumber: 0}]);"
        "return gd.querySelector('.hoverlayer').textContent"
    )
    assert "8192 computed + 2048 scheduled" in found
    assert "turboquant_attn.py:812:_continuation_prefill" in found


def test_log_scale_switch(show: Show) -> None:
    page = show(runs.crashed()).open()
    canvas = _figure("timeline-0")
    log = page.driver.find_element(By.CSS_SELECTOR, '[data-for="timeline-0"][data-scale="log"]')
    log.click()
    assert page.run(f"return document.querySelector('{canvas}').layout.yaxis.type") == "log"
    assert log.get_attribute("aria-pressed") == "true"
    page.driver.find_element(By.CSS_SELECTOR, '[data-for="timeline-0"]').click()
    assert page.run(f"return document.querySelector('{canvas}').layout.yaxis.type") != "log"
    assert page.console() == []


def test_table_sorts_by_numbers_and_says_so(show: Show) -> None:
    page = show(bounded(runs.many_sites(30))).open()
    header = page.driver.find_element(By.XPATH, "//table[@id='site-table']//th[3]")
    button = header.find_element(By.TAG_NAME, "button")
    button.click()
    sizes = [f"{256 * n / 1024:.2f} KiB" if n >= 4 else f"{256 * n} B" for n in range(1, 31)]
    assert header.get_attribute("aria-sort") == "descending"
    assert _column(page, 2) == sizes[::-1]
    button.send_keys(Keys.ENTER)
    assert header.get_attribute("aria-sort") == "ascending"
    assert _column(page, 2) == sizes


def test_filter_narrows_the_rows(show: Show) -> None:
    page = show(bounded(runs.many_sites(30))).open()
    page.driver.find_element(By.ID, "filter").send_keys("big.py:7: warm-up only")
    assert len(_column(page, 0)) == 1
    assert page.driver.find_element(By.ID, "filtered").text == "1 of 30 rows"


def test_theme_follows_the_system_and_the_button(show: Show) -> None:
    page = show(runs.crashed())
    page.media(prefers_color_scheme="dark")
    page.open()
    background = "return getComputedStyle(document.body).backgroundColor"
    font = "return document.querySelector('[data-figure=\"sites\"]').layout.font.color"
    dark, ink = page.run(background), page.run(font)
    button = page.driver.find_element(By.ID, "theme")
    assert button.text == "Light"
    button.click()
    assert button.text == "Dark"
    assert page.run(background) != dark
    assert page.run(font) != ink
    page.open()
    assert page.run("return document.documentElement.dataset.theme") == "light"
    page.run("localStorage.clear()")


def test_copy_button_copies_the_command(show: Show) -> None:
    page = show(runs.crashed()).open()
    page.run(
        "window.copied = []; document.addEventListener('copy', () =>"
        " window.copied.push(document.activeElement.value || String(getSelection())));"
        "if (navigator.clipboard) navigator.clipboard.writeText ="
        " (t) => { window.copied.push(t); return Promise.resolve(); }"
    )
    button = page.driver.find_elements(By.CSS_SELECTOR, "[data-copy]")[1]
    button.click()
    page.wait("document.querySelectorAll('[data-copy]')[1].textContent === 'Copied'")
    assert page.run("return window.copied") == [
        "wstrace run --reserve reserve.yaml -- vllm serve qwen3-8b-tq --max-model-len 16384"
    ]


@pytest.mark.parametrize("width", [380, 768])
@pytest.mark.parametrize("make", [*ALL, runs.cut], ids=lambda f: f.__name__)
def test_narrow_screens_do_not_scroll_sideways(
    show: Show, make: Callable[[], AnalysedRun], width: int
) -> None:
    page = show(make())
    page.resize(width)
    page.open(drawn=make is not runs.cut)
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.run("return document.documentElement.scrollWidth") <= width
    too_wide = page.run(
        "return Array.from(document.querySelectorAll('main *')).filter(e =>"
        " !e.closest('.canvas, .hidden') && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 120))"
    )
    assert too_wide == []


def test_keyboard_reaches_everything_that_can_be_used(show: Show) -> None:
    page = show(runs.crashed()).open()
    wanted = page.run(
        "return Array.from(document.querySelectorAll('a[href], button, input, summary'))"
        ".filter(e => e.offsetParent !== null && !e.matches('.skip')).length"
    )
    reached = set()
    body = page.driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert page.driver.switch_to.active_element.text == "Skip to the report"
    for _ in range(wanted + 40):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        active = page.driver.switch_to.active_element
        if active.tag_name in ("a", "button", "input", "summary"):
            reached.add(active.id)
    assert len(reached) >= wanted


def test_a_link_opens_the_origin_it_leads_to(show: Show) -> None:
    page = show(runs.crashed()).open()
    assert page.run("return document.getElementById('site-2').open") is False
    page.driver.find_element(By.CSS_SELECTOR, "#row-2 a").click()
    page.wait("document.getElementById('site-2').open")


def test_text_parts_without_javascript(show: Show) -> None:
    page = show(runs.crashed())
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.open(drawn=False)
    text = page.driver.find_element(By.TAG_NAME, "main").text
    for part in ("The fix", "WS101", "turboquant_attn.py:812", "wstrace reserve", "32.00 MiB"):
        assert part in text
    assert "This figure needs JavaScript" in text
    assert "Filter" not in text
    assert not page.driver.find_element(By.ID, "theme").is_displayed()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_not_run(show: Show, name: str) -> None:
    page = show(renamed(name)).open()
    assert page.console() == []
    assert page.requests() == [page.path.as_uri()]
    assert page.run("return document.querySelectorAll('script').length") == 3
    assert page.run("return document.querySelectorAll('svg a, main img').length") == 0


def test_5_000_sites_and_512_ranks_open(show: Show) -> None:
    page = show(bounded(runs.many_sites(5000))).open()
    assert page.console() == []
    assert page.run("return document.querySelectorAll('#site-table tbody tr').length") == 1000
    page = show(runs.many_ranks(512))
    page.resize(380)
    page.open()
    assert page.run("return document.querySelectorAll('.grid li').length") == 512
    assert page.run("return document.documentElement.scrollWidth") <= 380


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["crashed", "grown", "cut", "ranks", "pair"])
def test_axe_finds_no_serious_violation(show: Show, kind: str, theme: str) -> None:
    sessions: dict[str, tuple[AnalysedRun, ...]] = {
        "crashed": (runs.crashed(),),
        "grown": (runs.grown(),),
        "cut": (runs.cut(),),
        "ranks": (runs.many_ranks(40),),
        "pair": (runs.reserved(), runs.crashed()),
    }
    page = show(*sessions[kind])
    page.media(prefers_color_scheme=theme)
    page.open(drawn=kind != "cut")
    assert serious_violations(page) == []


def test_a_long_name_breaks_in_the_headline(show: Show) -> None:
    """WS301's names a caller inside a sentence; at 420 px it ran off the edge."""
    page = show(load_run(SAMPLES / "h100-vllm-0.26.0-turboquant-prefix"))
    page.resize(420)
    page.open()
    assert page.run("return document.documentElement.scrollWidth") <= 420


def test_two_runs_side_by_side(show: Show) -> None:
    page = show(runs.reserved(), runs.crashed()).open()
    assert page.console() == []
    assert page.run(TRACES, _figure("changes"), ".barlayer .point path") == 6
    assert page.run("return document.querySelectorAll('#change-table tbody tr').length") == 3
    page.resize(380)
    assert page.run("return document.documentElement.scrollWidth") <= 380


def test_print_shows_everything_in_light(show: Show) -> None:
    page = show(runs.crashed())
    page.media(prefers_color_scheme="dark")
    page.open()
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("return document.querySelectorAll('details:not([open])').length") == 0
    assert page.run("return document.documentElement.dataset.theme") == "light"
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("return document.querySelectorAll('details:not([open])').length") > 0
    assert page.run("return document.documentElement.dataset.theme || 'none'") == "none"
