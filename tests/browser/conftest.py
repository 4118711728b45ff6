"""A headless Chromium with no network, and pages to open in it."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wstrace.report.html import render

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the browser."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    """One Chromium for all tests; logs of the page and of its network are kept."""
    browser, control = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not control:
        pytest.skip("needs Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(control))
    yield started
    started.quit()


@dataclass
class Page:
    """A report in the browser."""

    driver: webdriver.Chrome
    path: Path

    def run(self, script: str, *args: object) -> Any:
        """The value of a function body in the page."""
        return self.driver.execute_script(script, *args)

    def resize(self, width: int, height: int = 900) -> None:
        """The size of the viewport in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def media(self, **features: str) -> None:
        """Emulated media features, such as prefers_color_scheme='dark'; nothing moves."""
        features["prefers_reduced_motion"] = "reduce"
        given = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": given})

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until a JavaScript expression is true."""
        WebDriverWait(self.driver, seconds, 0.05).until(
            lambda _: self.run(f"return {condition}")
        )

    def open(self, drawn: bool = True) -> Page:
        """Load the file; wait until its figures are drawn."""
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(self.path.as_uri())
        if drawn:
            self.wait("document.documentElement.dataset.figures === 'drawn'")
        return self

    def console(self) -> list[str]:
        """What the page wrote to the console since it was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """URLs that the page asked for since it was opened."""
        import json

        messages = [
            json.loads(e["message"])["message"] for e in self.driver.get_log("performance")
        ]
        sent: list[Mapping[str, Any]] = [
            m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"
        ]
        return [params["request"]["url"] for params in sent]

    def picture(self, selector: str, name: str, margin: int = 12) -> None:
        """A PNG of one element under WSTRACE_IMAGES, where that is set."""
        folder = os.environ.get("WSTRACE_IMAGES")
        if not folder:
            return
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        self.resize(width, height)
        self.run("scrollTo(0, 0)")
        box = self.run(
            "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [b.left + scrollX, b.top + scrollY, b.width, b.height]",
            selector,
        )
        clip = {
            "x": max(0, box[0] - margin),
            "y": max(0, box[1] - margin),
            "width": box[2] + 2 * margin,
            "height": box[3] + 2 * margin,
            "scale": 1,
        }
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
        )
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / name).write_bytes(base64.b64decode(shot["data"]))


def serious_violations(page: Page) -> list[tuple[str, str]]:
    """What axe-core finds on the page with everything open: a rule, the first such element."""
    axe = os.environ.get("WSTRACE_AXE", "")
    if not Path(axe).is_file():
        pytest.skip("axe-core is fetched by scripts/browser-tests")
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.driver.execute_cdp_cmd(
        "Runtime.evaluate", {"expression": Path(axe).read_text("utf-8")}
    )
    result: dict[str, Any] = page.driver.execute_async_script(
        "const done = arguments[0]; axe.run(document).then(done, e => done({error: String(e)}))"
    )
    assert "error" not in result
    serious = [v for v in result["violations"] if v["impact"] in ("serious", "critical")]
    return [(v["id"], v["nodes"][0]["html"][:200]) for v in serious]


@pytest.fixture
def write(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """`write(html)` writes a page and gives it."""
    folder = tmp_path / "pages"
    folder.mkdir()

    def make(text: str) -> Page:
        path = folder / f"report-{len(list(folder.iterdir()))}.html"
        path.write_text(text, encoding="utf-8")
        page = Page(driver, path)
        page.resize(1280)
        page.media(prefers_color_scheme="light")
        return page

    yield make
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    driver.get("about:blank")


@pytest.fixture
def show(write: Callable[[str], Page]) -> Callable[..., Page]:
    """`show(session, ...)` writes the report of one or two sessions and gives its page."""
    return lambda *sessions: write(render(sessions))
