"""docs/compatibility.md: no test that did not run looks like one that does not apply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.matrix import compatibility
from tests.matrix.compatibility import Lines, Outcomes, lines, missing, read_page, render
from tests.matrix.wheels import PINNED
from wstrace.vllm.methods import HOOKS

LINES: Lines = {"always": [("0", "99")], "later": [("0.28", "99")], "once": [("0", "0.18.1")]}
ALL = dict.fromkeys(("0.13.0", "0.28.0"), True)
RUN: Outcomes = {"always": ALL, "later": {"0.28.0": True}, "once": {"0.13.0": True}}


def cells(text: str, label: str) -> list[str]:
    row = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in row.split("|")[2:-1]]


def test_what_does_not_apply_is_told_from_what_did_not_run() -> None:
    ran = {"always": {"0.13.0": True}, "later": {"0.28.0": False}}
    text = render(ran, LINES, ("0.13.0", "0.28.0"))
    assert cells(text, "always") == ["yes", "**not run**"]
    assert cells(text, "later") == ["n/a", "**no**"]
    assert cells(text, "once") == ["**not run**", "n/a"]


def test_a_release_without_a_patch_number_includes_all_its_patches() -> None:
    until = {"once": [("0", "0.28")]}
    assert missing({}, until, ("0.28.0", "0.28.1", "0.29.0")) == [
        "once: 0.28.0",
        "once: 0.28.1",
    ]


@pytest.mark.parametrize("lost", ["always", "later", "once"])
def test_what_was_expected_and_did_not_run_is_named_and_no_page_is_written(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    monkeypatch.setattr(compatibility, "PAGE", page)
    monkeypatch.setattr(compatibility, "PINNED", ("0.13.0", "0.28.0"))
    monkeypatch.setattr(compatibility, "lines", lambda: LINES)
    results.write_text(json.dumps({k: v for k, v in RUN.items() if k != lost}))
    with pytest.raises(SystemExit, match=f"did not run:\n.*{lost}"):
        compatibility.main(results)
    assert not page.exists()
    results.write_text(json.dumps(RUN))
    compatibility.main(results)
    assert read_page(page.read_text()) == RUN


def test_a_failure_is_no_page_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr(compatibility, "PINNED", ("0.13.0", "0.28.0"))
    monkeypatch.setattr(compatibility, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(compatibility, "lines", lambda: LINES)
    results.write_text(json.dumps({**RUN, "later": {"0.28.0": False}}))
    with pytest.raises(SystemExit, match="failed:\nlater: 0"):
        compatibility.main(results)


def test_the_page_fits_the_code_and_was_not_edited_by_hand() -> None:
    text = compatibility.PAGE.read_text()
    outcomes = read_page(text)
    assert render(outcomes, lines(), PINNED) == text
    assert missing(outcomes, lines(), PINNED) == []
    assert all(all(line.values()) for line in outcomes.values())
    assert all(f"`{known.label}`" in text for known in HOOKS)
    assert set(outcomes) == set(lines())
    assert len(outcomes) > 40
