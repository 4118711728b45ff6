"""An audit as SARIF and as a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import wstrace
from tests.unit.audit.test_roles_and_matches import GATED, MOST, layer, request
from wstrace.audit.whole import audit
from wstrace.report.ci.audit_sarif import render
from wstrace.report.html.audit_page import render_audit

Package = Callable[..., Path]
TWICE = layer(MOST).replace(
    "        return current", f"        {request(MOST)}[0].fill_(0)\n        return current"
)


def test_sarif_has_a_result_for_each_request_without_a_reservation(package: Package) -> None:
    root = package(bad=TWICE, gated=GATED, good=layer(MOST, profiled=request(MOST)))
    (run,) = json.loads(render(audit(root, "1.2.3")))["runs"]
    told = [(r["ruleId"], r["level"]) for r in run["results"]]
    assert told == [("audit/none", "error")] * 2 + [("audit/partial", "warning")]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [
        "audit/none",
        "audit/partial",
    ]
    marks = [r["partialFingerprints"]["wstraceAudit/v1"] for r in run["results"]]
    assert len(set(marks)) == 3
    partial = run["results"][-1]
    uris = [place["physicalLocation"]["artifactLocation"]["uri"] for place in
            (*partial["locations"], *partial["relatedLocations"])]  # fmt: skip
    assert uris == ["vllm/gated.py", "vllm/gated.py"]


def test_sarif_marks_stay_where_lines_move(package: Package) -> None:
    def marks(text: str) -> set[str]:
        (run,) = json.loads(render(audit(package(bad=text), "")))["runs"]
        return {r["partialFingerprints"]["wstraceAudit/v1"] for r in run["results"]}

    assert marks(TWICE) == marks("\n\n# moved\n" + TWICE)


def test_the_page_shows_the_lines_that_the_verdict_rests_on(package: Package) -> None:
    root = package(gated=GATED)
    text = render_audit(audit(root, "1.2.3"), root).replace("<wbr>", "")
    assert "enable_chunked_prefill" in text
    asked = (root / "gated.py").read_text().splitlines()
    line = next(n for n, t in enumerate(asked, 1) if "(k,) = current" in t)
    assert re.search(rf"<mark>{line:5d} &gt;  *{re.escape(asked[line - 1].strip()[:10])}", text)
    assert "reserved at" in text


def test_the_page_escapes_what_the_source_says(package: Package) -> None:
    nasty = TWICE.replace("def decode", "def decode")
    nasty = nasty.replace("[0].fill_(0)", "[0].fill_(0)  # <script>alert(1)</script>")
    root = package(bad=nasty)
    text = render_audit(audit(root, ""), root)
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.parametrize(
    ("form", "asked", "has"),
    [
        (["0.1.0", "0.2.0"], "html", "A comparison"),
        (["0.1.0", "0.2.0"], "sarif", "A comparison"),
        (["--config", "-tp 2", "--model-config", "config.json"], "markdown", "A prediction"),
        (["--model-config", "config.json"], "sarif", "A prediction"),
        (["--trace", "trace"], "html", "A run's audit"),
        (["--suggest", "x.py:1"], "json", "A patch"),
    ],
)
def test_a_format_that_a_form_does_not_have_is_refused(
    form: list[str], asked: str, has: str, tmp_path: Path
) -> None:
    page = tmp_path / {"markdown": "x.md"}.get(asked, f"x.{asked}")
    for option in (["--format", asked], ["-o", str(page)]):
        done = wstrace("audit", *form, *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(
            f"wstrace: {has} is not written as {asked}.\nFormats of it: text"
        )
    assert not page.exists()
